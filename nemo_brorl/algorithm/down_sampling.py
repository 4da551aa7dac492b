"""Train on fewer rollouts than were sampled: those that say most (PODS, arXiv 2504.13818). Sampling a large N is cheap
next to learning from it, and of 512 rollouts most repeat each other."""

from __future__ import annotations

import numpy as np

from nemo_brorl.types import Float32, Int64


def max_variance_subset(rewards: Float32, size: int) -> Int64:
    """Indices, ascending, of `size` rollouts of a group with the largest variance of rewards; all of them where there
    are no more.

    Such a subset is always the k highest and the size − k lowest rewards for some k (theorem 1 of the paper), so k is
    found in one pass over prefix sums. Rewards with equal variance: the smallest k.
    """
    num = len(rewards)
    if size >= num:
        return np.arange(num)
    order = np.argsort(rewards, kind="stable")
    ascending = rewards[order].astype(np.float64)
    sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (ascending, ascending**2))
    high = np.arange(size + 1)  # k: how many come from the top
    total = sums[size - high] + sums[num] - sums[num - high]
    total_of_squares = squares[size - high] + squares[num] - squares[num - high]
    best = int(np.argmax(np.round(total_of_squares / size - (total / size) ** 2, 12)))
    return np.sort(np.concatenate([order[: size - best], order[num - best :]]))
