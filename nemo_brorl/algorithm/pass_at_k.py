"""Estimate pass@k from n samples of each prompt, and the pass@1 of a model that always gives one answer per task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln


def share_within(few: int, many: int, k: int) -> float:
    """Return C(few, k) / C(many, k): the share of the k-subsets of `many` items that lie within `few` of them.

    Needs few ≤ many. Logarithms keep N = 512 from overflowing. For few = many the result is exactly 1: rounding above 1
    would make the variance of `advantages.pass_at_k` negative.
    """
    if k > few:
        return 0.0
    if few == many:
        return 1.0
    log_of_few = gammaln(few + 1) - gammaln(few - k + 1)
    log_of_many = gammaln(many + 1) - gammaln(many - k + 1)
    return float(np.exp(log_of_few - log_of_many))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate 1 − C(n − c, k) / C(n, k) of the chance that one of k samples is correct.

    n is `num_samples`, c is `num_correct`, and k ≤ n. Source: Chen et al., arXiv 2107.03374 eq. 1.
    """
    assert 1 <= k <= num_samples, f"pass@{k} needs at least {k} samples, got {num_samples}"
    return 1.0 - share_within(num_samples - num_correct, num_samples, k)


def mean_pass_at_k(num_correct: Sequence[int], num_samples: Sequence[int], k: int) -> float:
    """Return the mean of the unbiased pass@k estimate over prompts. k is smaller where a prompt has fewer samples."""
    counts = zip(num_samples, num_correct, strict=True)
    values = [pass_at_k(num, correct, min(k, num)) for num, correct in counts]
    return float(np.mean(values))


def standard_error(per_prompt: Sequence[float]) -> float:
    """Return the standard error of a mean over prompts, NaN for fewer than two prompts.

    Samples of one prompt are not independent, but prompts are. So `per_prompt` has one value for each prompt.
    """
    if len(per_prompt) < 2:
        return float("nan")
    values = np.asarray(per_prompt, np.float64)
    deviation = values.std(ddof=1)
    return float(deviation / np.sqrt(len(values)))


def constant_pass_at_1(references: Sequence[tuple[str, str]]) -> float:
    """Return the pass@1 of always giving each task's most frequent reference answer.

    `references` are (task, reference answer) of each prompt.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task, reference in references:
        counts[task][reference] += 1
    num_right = 0
    for of_task in counts.values():
        num_right += max(of_task.values())
    return num_right / len(references)
