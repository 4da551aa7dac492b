"""pass@k from n samples of each prompt, and the pass@1 of a model that always answers the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.subsets import pass_at_k


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
