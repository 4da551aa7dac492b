"""Choose the rollouts of a group to train on, where that is not all of them."""

from __future__ import annotations

import numpy as np

from nemo_brorl.types import Float32, Int64


def max_variance_subset(rewards: Float32, size: int) -> Int64:
    """Return the ascending indices of the `size` rollouts whose rewards have the largest variance.

    Source: PODS, arXiv 2504.13818. `rewards` [N] are those of a prompt's N rollouts. With N ≤ `size` all indices are
    returned. Of 512 rollouts of one prompt most repeat each other.

    By theorem 1 of the paper the best subset is the k highest and the size − k lowest rewards for some k. So one pass
    over prefix sums finds k. Of subsets with equal variance the one with the smallest k is returned.
    """
    num = len(rewards)
    if size >= num:
        return np.arange(num)
    order = np.argsort(rewards, kind="stable")
    ascending = rewards[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ascending)])
    squares = np.concatenate([[0.0], np.cumsum(ascending**2)])
    high = np.arange(size + 1)  # candidates for k, the number of highest rewards
    total = sums[size - high] + sums[num] - sums[num - high]
    total_of_squares = squares[size - high] + squares[num] - squares[num - high]
    variances = total_of_squares / size - (total / size) ** 2
    # Variances that differ by rounding alone are ties, whatever the scale of the rewards.
    scale = float((ascending**2).max()) or 1.0
    best = int(np.argmax(np.round(variances / scale, 12)))
    chosen = np.concatenate([order[: size - best], order[num - best :]])
    return np.sort(chosen)


def with_every_reward(rewards: Float32, trained: Int64) -> Int64:
    """Return as many trained rollouts, but one of every reward, so that `stratum_weights` has something to weigh.

    A rollout of the most trained reward gives way to each. Where there are more rewards than trained rollouts, the
    choice stays as it is.
    """
    strata = _strata(rewards)
    if strata.max() >= len(trained):
        return trained
    chosen = trained.tolist()
    for missing in np.setdiff1d(strata, strata[trained]):
        most = np.bincount(strata[chosen]).argmax()
        chosen.remove(next(place for place in chosen if strata[place] == most))
        chosen.append(int(np.argmax(strata == missing)))
    return np.sort(np.array(chosen))


def _strata(rewards: Float32) -> Int64:
    """Return the rank of each rollout's reward [N]. Rewards that are equal but for rounding have one rank."""
    scale = float(np.abs(rewards).max()) or 1.0
    ranks: Int64 = np.unique(np.round(rewards.astype(np.float64) / scale, 6), return_inverse=True)[1]
    return ranks


def stratum_weights(rewards: Float32, trained: Int64) -> Float32 | None:
    """Return the weights [N] with which trained rollouts stand for all N of their group, 0 for those left out.

    Given the rewards, rollouts of equal reward are exchangeable. So the weight is (rollouts of that reward in the group
    / of it trained) · (trained / N), and the mean over the trained is in expectation that over the group (stratified
    sampling). None: some reward has no trained rollout.

    Example: of rewards 1, 0, 0, 0 two are trained, 1 and 0: weights 1/1 · 2/4 and 3/1 · 2/4.
    """
    strata = _strata(rewards)
    num_all = np.bincount(strata)
    num_trained = np.bincount(strata[trained], minlength=len(num_all))
    if not num_trained.all():
        return None
    weights = np.zeros(len(rewards), np.float32)
    weights[trained] = (num_all / num_trained)[strata[trained]] * len(trained) / len(rewards)
    return weights
