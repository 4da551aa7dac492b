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

from nemo_brorl.algorithm.advantages.base import Advantage, GroupRewards
from nemo_brorl.algorithm.advantages.grpo import dr_grpo
from nemo_brorl.algorithm.advantages.reinforce_plus_plus import reinforce_plus_plus_baseline
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


def advantages_by_wave(
    groups: Sequence[GroupRewards], waves: Sequence[Sequence[WaveMembers]], config: AlgorithmConfig
) -> list[Float32]:
    """One [N] array per group, groups of different sizes. A wave of n rollouts with weight w and rewards r gets

        (r − mean of the wave) · w / (n − 1) · rollouts per group of the batch

    so that the sum over a batch, divided by its rollouts, is the mean of the groups' estimates, as it is for groups of
    equal size. A wave of one rollout has nothing to compare it with and gets 0.
    """
    parts = [(group, wave) for group, members in enumerate(waves) for wave in members if len(wave.rollouts) > 1]
    rewards = [
        GroupRewards(groups[group].raw[wave.rollouts], groups[group].shaped[wave.rollouts]) for group, wave in parts
    ]
    advantages = [np.zeros(len(group.raw), np.float32) for group in groups]
    if not parts:
        return advantages
    mean_size = float(np.mean([len(group.raw) for group in groups]))
    for (group, wave), values in zip(parts, BY_WAVE[config.advantage](rewards, config), strict=True):
        advantages[group][wave.rollouts] = values * np.float32(wave.weight * mean_size / (len(values) - 1))
    return advantages
