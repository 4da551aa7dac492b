"""Choose the rollouts of a group that are learned from, where that is not all of them."""

from __future__ import annotations

import numpy as np

from nemo_brorl.types import Float32, Int64


def max_variance_subset(rewards: Float32, size: int) -> Int64:
    """Return indices, ascending, of `size` rollouts of a group with the largest variance of rewards (PODS, arXiv
    2504.13818); all of them where there are no more. Of 512 rollouts most repeat each other.

    Such a subset is always the k highest and the size − k lowest rewards for some k (theorem 1 of the paper), so k is
    found in one pass over prefix sums. Rewards with equal variance: the smallest k.
    """
    num = len(rewards)
    if size >= num:
        return np.arange(num)
    order = np.argsort(rewards, kind="stable")
    ascending = rewards[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ascending)])
    squares = np.concatenate([[0.0], np.cumsum(ascending**2)])
    high = np.arange(size + 1)  # k: how many come from the top
    total = sums[size - high] + sums[num] - sums[num - high]
    total_of_squares = squares[size - high] + squares[num] - squares[num - high]
    variances = total_of_squares / size - (total / size) ** 2
    best = int(np.argmax(np.round(variances, 12)))
    chosen = np.concatenate([order[: size - best], order[num - best :]])
    return np.sort(chosen)
