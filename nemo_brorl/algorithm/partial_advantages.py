"""Advantages of parts of a group that are compared with each other alone: turns of trajectories, and waves.

`algorithm.credit` says what each turn of a trajectory is learnt by:

    outcome  the trajectory's reward: one advantage for all of its turns (the default)
    return   the discounted sum of its turns' rewards Σ γ^(j − 1) r_j, likewise one advantage
    turn     each turn its own return from there on, G_j = r_j + γ G_(j + 1), against the returns of the group's other
             trajectories at the same turn (after MT-GRPO, arXiv 2505.11821, which adds the advantages of turn and
             outcome)

γ is `algorithm.turn_discount`. What shaping changes in a trajectory's reward is part of the reward of its last turn.
Legend: N rollouts of a group, K turns of its longest trajectory.

In groups that grew in waves every wave is compared with itself alone, then weighted (`rollouts/group_size/waves.py`
says why). Only advantages that subtract the mean, for which a wave of any size estimates the same gradient once its sum
is divided by n − 1. A group's deviation (grpo), its mean as divisor (maxrl) or subsets of it (pass_at_k) make the
expectation depend on n, and one baseline for the batch (reinforce_plus_plus) on which groups were extended:
`rollouts.allocation=waves` refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.algorithm.advantages import (
    Advantage,
    GroupRewards,
    advantages_of,
    dr_grpo,
    reinforce_plus_plus_baseline,
)
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32, Int32, Int64, ScoredGroup

Float64 = NDArray[np.float64]
BY_WAVE: dict[str, Advantage] = {
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,  # one deviation for the batch: a common scale
    "dr_grpo": dr_grpo,
    "rloo": dr_grpo,  # RLOO's factor n / (n − 1) is part of every wave's weight
}


def returns_of(group: ScoredGroup, shaped: Float32, discount: float) -> Float64:
    """Return of each turn [N, K]; 0 after the last one. A rollout of no environment has one turn, with its reward."""
    num_turns = group.num_turns
    num = len(num_turns)
    rewards = np.zeros((num, int(num_turns.max())))
    start = 0
    for chunk, record in zip(group.group.chunks, group.turns, strict=True):
        end = start + len(chunk.lengths)
        of_turns = group.rewards[start:end, None] if record is None else record.rewards
        rewards[start:end, : of_turns.shape[1]] = of_turns
        start = end
    rewards[np.arange(num), num_turns - 1] += shaped.astype(np.float64) - group.rewards
    for turn in range(rewards.shape[1] - 2, -1, -1):
        rewards[:, turn] += discount * rewards[:, turn + 1]
    return rewards


def advantages_by_turn(
    groups: Sequence[GroupRewards],
    returns: Sequence[Float64],
    num_turns: Sequence[Int32],
    config: AlgorithmConfig,
) -> list[Float32]:
    """One [N, K] array per group. The trajectories that have come to a turn are compared with each other there, as if
    they were a group; one that has come further than all others has nothing to be compared with, and gets 0.

    Example: returns of turns (1, 1), (0, 0), (0) with one discount. dr_grpo takes off 1/3 at the first turn and 1/2 at
    the second: (2/3, 1/2), (−1/3, −1/2), (−1/3).
    """
    advantages = [np.zeros(values.shape, np.float32) for values in returns]
    compared: list[GroupRewards] = []
    places: list[tuple[int, int, NDArray[np.int64]]] = []
    for index, group in enumerate(groups):
        for turn in range(returns[index].shape[1]):
            members = np.flatnonzero(num_turns[index] > turn)
            if len(members) < 2:
                continue
            shaped = returns[index][members, turn].astype(np.float32)
            compared.append(GroupRewards(group.raw[members], shaped, group.lengths[members]))
            places.append((index, turn, members))
    if not compared:
        return advantages
    for (index, turn, members), values in zip(places, advantages_of(compared, config), strict=True):
        advantages[index][members, turn] = values
    return advantages


@dataclass(frozen=True)
class WaveMembers:
    """The rollouts of a wave that are there."""

    rollouts: Int64  # indices into the group
    weight: float  # of their mean in the group's estimate
    num_planned: int  # rollouts of the wave that are there or will be learnt from in a later step


def advantages_by_wave(
    groups: Sequence[GroupRewards], waves: Sequence[Sequence[WaveMembers]], config: AlgorithmConfig
) -> list[Float32]:
    """One [N] array per group, groups of different sizes. A wave of n rollouts with weight w and rewards r, of which m
    are planned, gets

        (r − mean of the wave) · w · (n / m) / (n − 1) · planned rollouts per group of the batch

    so that the sum over a batch, divided by its rollouts, is the mean of the groups' estimates, as it is for groups of
    equal size. A wave of one rollout has nothing to compare it with and gets 0. A wave that a deadline has cut, whose
    rest is sampled on, has n < m now; in a later step only that rest is learnt from, and both parts together count as
    the whole wave.

    Example: two groups of 4 and 2 rollouts, each one wave of weight 1, have 3 rollouts per group; a success among the
    first four gets (1 − 1/4) · 1 / 3 · 3 = 0.75, one of the two gets (1 − 1/2) · 1 / 1 · 3 = 1.5 (dr_grpo).
    """
    advantages = [np.zeros(len(group.raw), np.float32) for group in groups]
    compared: list[tuple[int, WaveMembers]] = []
    rewards: list[GroupRewards] = []
    for index, members in enumerate(waves):
        for wave in members:
            if len(wave.rollouts) > 1:
                compared.append((index, wave))
                rewards.append(groups[index].of(wave.rollouts))
    if not compared:
        return advantages
    planned_sizes: list[int] = []
    for members in waves:
        sizes = [wave.num_planned for wave in members]
        planned_sizes.append(sum(sizes))
    mean_size = float(np.mean(planned_sizes))
    values_by_wave = BY_WAVE[config.advantage](rewards, config)
    for (index, wave), values in zip(compared, values_by_wave, strict=True):
        share = len(values) / wave.num_planned
        scale = wave.weight * share * mean_size / (len(values) - 1)
        advantages[index][wave.rollouts] = values * np.float32(scale)
    return advantages
