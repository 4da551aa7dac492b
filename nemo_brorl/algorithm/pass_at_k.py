"""pass@k from n samples of each prompt, by shares of subsets, and the pass@1 of a model that always answers alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln


def share_within(few: int, many: int, k: int) -> float:
    """Share of the subsets of k of `many` that lie within `few` of them, few ≤ many: C(few, k) / C(many, k), through
    logarithms so that N = 512 does not overflow. Rounding must not take it above 1 where few is many: a deviation would
    be the root of something negative."""
    if k > few:
        return 0.0
    if few == many:
        return 1.0
    log_of_few = gammaln(few + 1) - gammaln(few - k + 1)
    log_of_many = gammaln(many + 1) - gammaln(many - k + 1)
    return float(np.exp(log_of_few - log_of_many))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is correct: 1 − C(n − c, k) / C(n, k) (Chen et al.,
    arXiv 2107.03374 eq. 1). Needs k ≤ n."""
    assert 1 <= k <= num_samples, f"pass@{k} needs at least {k} samples, got {num_samples}"
    return 1.0 - share_within(num_samples - num_correct, num_samples, k)


def mean_pass_at_k(num_correct: Sequence[int], num_samples: int, k: int) -> float:
    """Mean of `pass_at_k` over prompts."""
    values = [pass_at_k(num_samples, correct, k) for correct in num_correct]
    return float(np.mean(values))


def standard_error(per_prompt: Sequence[float]) -> float:
    """Standard error of a mean over prompts (samples of one prompt are not independent; prompts are). NaN for one
    prompt."""
    if len(per_prompt) < 2:
        return float("nan")
    values = np.asarray(per_prompt, np.float64)
    deviation = values.std(ddof=1)
    return float(deviation / np.sqrt(len(values)))


def constant_pass_at_1(references: Sequence[tuple[str, str]]) -> float:
    """pass@1 of always giving each task's most frequent reference answer. `references`: (task, reference answer) of
    each prompt."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task, reference in references:
        counts[task][reference] += 1
    num_right = 0
    for of_task in counts.values():
        num_right += max(of_task.values())
    return num_right / len(references)
