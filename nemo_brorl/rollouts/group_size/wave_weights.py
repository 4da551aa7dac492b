"""Weights of a group's waves: what makes the estimate of its gradient unbiased although rewards decided on its size.

How large a group is depends on its rewards, so a plain mean over its rollouts is biased. With r, s the
reward and score function of a rollout, let ĝ_k = Σ (r − r̄_k) s / (n_k − 1) over wave k alone (its own mean as
baseline, RLOO's factor); S_k = n_1 + … + n_k; M_k the mean of ĝ_1 … ĝ_k weighed by size; P_k the probability of wave k
once k − 1 was there; and α_k, with sum 1, the part of the estimate that wave k is for, fixed in advance. The estimate
is

    Ĝ = α_1 ĝ_1 + R_2
    R_k = b_k + (α_k ĝ_k + R_{k+1} − b_k) / P_k  if wave k was drawn, else b_k
    b_k = β_k (α_k + … + α_K) M_{k−1}            known before wave k, stands in for all that may not be drawn

Given all N rollouts, drawn or not, the coin of wave k has the known mean P_k: E R_k = E[α_k ĝ_k + R_{k+1}] whatever b_k
is, and so, from the last wave back, E Ĝ = Σ α_k E ĝ_k = g, since every ĝ_k is unbiased whatever its size. That needs
decisions that look at earlier waves only, and waves that are not coupled through a common baseline.

Any α and β are unbiased; the variance depends on them. With α_k = n_k / N a group that is sure to get all waves is
averaged plainly, but a wave that few groups get weighs 1 / (P_2 ⋯ P_k) times its size where it was drawn. With α_k in
proportion to n_k `reach`^(k − 1), `reach` being the share of groups that go on, all rollouts weigh about the same. With
α = n / N and β = 1 the estimate is the sum ĝ_1 + Σ (n_k / S_k) (ĝ_k − M_{k−1}) / (P_2 ⋯ P_k) (Rhee & Glynn 2015), with
β = 0 it is inverse probability weighting. The best β makes β M_{k−1} the best prediction and is the share of signal in
M_{k−1}: β_k = S_{k−1} / (S_{k−1} + h).

A deadline that ends a group after k waves lets the last of them take the shares that can no longer come, α_k + … +
α_K; the coins before it were tossed under the same shares, so E Ĝ = g as long as the deadline does not look at
rewards. Was wave k drawn and lost to the deadline, M_{k−1} takes its place in R_k: had the group just been dropped, its
prompt would have lost the weight of all groups that were worth extending.

All of it is linear in the waves: Ĝ = Σ w_k ĝ_k. `Wave.weight` is w_k, and goes into the advantages
(`algorithm/train_batch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Draw:
    """A wave of a group that is still open."""

    num_rollouts: int
    probability: float  # given the earlier waves


def total_size(draws: Sequence[Draw]) -> int:
    """Rollouts of all waves together."""
    return sum(draw.num_rollouts for draw in draws)


def shares(sizes: Sequence[int], reach: float) -> list[float]:
    """α_k of all waves that a group may get: as sizes, each wave `reach` times less than the one before."""
    parts: list[float] = []
    factor = 1.0
    for size in sizes:
        parts.append(size * factor)
        factor *= reach
    total = sum(parts)
    return [part / total for part in parts]


def shares_when_cut(planned: Sequence[float], num_waves: int) -> list[float]:
    """Shares of the waves of a group that ended after `num_waves` of those planned: the last one takes what can no
    longer come."""
    last = num_waves - 1
    return [*planned[:last], sum(planned[last:])]


def wave_weights(
    draws: Sequence[Draw],
    alphas: Sequence[float],
    half_signal: float,
    is_last_lost: bool = False,
) -> list[float]:
    """w_k of every drawn wave from the shares of all waves that there might have been: the formula of this module,
    multiplied out. A lost last wave has the weight 0."""
    weights = [0.0] * len(draws)
    last = len(draws) - 1

    def add_mean_of_first(num_waves: int, factor: float) -> None:
        """`factor` times M, the mean of the first waves weighed by size."""
        size = total_size(draws[:num_waves])
        for wave in range(num_waves):
            part = draws[wave].num_rollouts / size
            weights[wave] += factor * part

    def stand_in(num_waves: int) -> float:
        """b as a multiple of M: for all that may come after the first waves."""
        size = total_size(draws[:num_waves])
        return share_of_signal(size, half_signal) * sum(alphas[num_waves:])

    reach = 1.0  # q
    for wave, draw in enumerate(draws):
        if wave > 0:
            correction = 1 - 1 / draw.probability
            add_mean_of_first(wave, correction * stand_in(wave) / reach)
            reach *= draw.probability
        if is_last_lost and wave == last:
            add_mean_of_first(wave, alphas[wave] / reach)
        else:
            weights[wave] += alphas[wave] / reach
    add_mean_of_first(len(draws), stand_in(len(draws)) / reach)
    return weights


def share_of_signal(num_rollouts: int, half_signal: float) -> float:
    """n / (n + h)."""
    return num_rollouts / (num_rollouts + half_signal)
