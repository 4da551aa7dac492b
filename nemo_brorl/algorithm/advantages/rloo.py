"""RLOO: the baseline of a rollout is the mean of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.advantages.base import GroupRewards, centred
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32


def rloo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R_i − mean of R_j over j ≠ i, which is N / (N − 1) (R_i − group mean) (RLOO, arXiv 2402.14740 section 3.1)."""
    return [(centred(group) * len(group.raw) / (len(group.raw) - 1)).astype(np.float32) for group in groups]
