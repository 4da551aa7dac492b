"""What every advantage is: a pure function from the rewards of a batch's groups to one number per rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32

EPSILON = 1e-8  # keeps a division by a vanishing deviation finite

Float64 = NDArray[np.float64]
Advantage = Callable[[Sequence[Float32], AlgorithmConfig], list[Float32]]  # one [N] array per group, to the same shapes


def wide(group: Float32) -> Float64:
    """Rewards in float64: the mean of 512 equal float32 rewards need not be that reward."""
    return group.astype(np.float64)


def centred(group: Float32) -> Float64:
    """Rewards minus their group's mean [N]."""
    return wide(group) - wide(group).mean()


def whitened(groups: Sequence[Float64]) -> list[Float32]:
    """Divided by the root mean square over all rollouts of the batch."""
    deviation = float(np.sqrt(np.mean(np.concatenate(groups) ** 2)))
    return [(group / (deviation + EPSILON)).astype(np.float32) for group in groups]
