"""Advantages of groups that grew in waves: every wave is compared with itself alone, then weighted
(`rollouts/group_size/waves.py` says why).

Only advantages that subtract the mean, for which a wave of any size estimates the same gradient once its sum is divided
by n − 1. A group's deviation (grpo), its mean as divisor (maxrl) or subsets of it (pass_at_k) make the expectation
depend on n, and one baseline for the batch (reinforce_plus_plus) on which groups were extended:
`rollouts.allocation=waves` refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_brorl.algorithm.advantages import Advantage, GroupRewards, dr_grpo, reinforce_plus_plus_baseline
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32, Int64

BY_WAVE: dict[str, Advantage] = {
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,  # one deviation for the batch: a common scale
    "dr_grpo": dr_grpo,
    "rloo": dr_grpo,  # RLOO's factor n / (n − 1) is part of every wave's weight
}


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
