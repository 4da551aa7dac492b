"""Subsets of a group's rollouts."""

from __future__ import annotations

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
