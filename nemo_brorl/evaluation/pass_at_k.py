"""pass@k from n samples of each prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is correct: 1 − C(n−c, k) / C(n, k) (Chen et al.,
    arXiv 2107.03374 eq. 1), as a product that does not overflow. Needs k ≤ n."""
    assert 1 <= k <= num_samples, f"pass@{k} needs at least {k} samples, got {num_samples}"
    if num_samples - num_correct < k:
        return 1.0
    terms = 1.0 - k / np.arange(num_samples - num_correct + 1, num_samples + 1)
    return float(1.0 - np.prod(terms))


def mean_pass_at_k(num_correct: Sequence[int], num_samples: int, k: int) -> float:
    """Mean of `pass_at_k` over prompts."""
    return float(np.mean([pass_at_k(num_samples, correct, k) for correct in num_correct]))


def standard_error(per_prompt: Sequence[float]) -> float:
    """Standard error of a mean over prompts (samples of one prompt are not independent; prompts are). NaN for one
    prompt."""
    values = np.asarray(per_prompt, np.float64)
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
