"""What every advantage is: a pure function from the rewards of a batch's groups to one number per rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import SUCCESS_REWARD, Bool, Float32

EPSILON = 1e-8  # keeps a division by a vanishing deviation finite

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class GroupRewards:
    """Rewards of those rollouts of a group that are trained: the shaped ones are learnt from, the raw ones say what is
    correct."""

    raw: Float32  # [N]
    shaped: Float32  # [N]

    @property
    def is_correct(self) -> Bool:  # [N]
        """By the raw reward: shaping may take a correct answer far below SUCCESS_REWARD."""
        return self.raw >= SUCCESS_REWARD


Advantage = Callable[[Sequence[GroupRewards], AlgorithmConfig], list[Float32]]  # one [N] array per group


def wide(group: GroupRewards) -> Float64:
    """Shaped rewards in float64: the mean of 512 equal float32 rewards need not be that reward."""
    return group.shaped.astype(np.float64)


def centred(group: GroupRewards) -> Float64:
    """Shaped rewards minus their group's mean [N]."""
    return wide(group) - wide(group).mean()


def whitened(groups: Sequence[Float64]) -> list[Float32]:
    """Divided by the root mean square over all rollouts of the batch."""
    deviation = float(np.sqrt(np.mean(np.concatenate(groups) ** 2)))
    return [(group / (deviation + EPSILON)).astype(np.float32) for group in groups]
