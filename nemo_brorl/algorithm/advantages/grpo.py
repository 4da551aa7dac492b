"""GRPO and Dr. GRPO: compare a rollout with its group alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.advantages.base import EPSILON, GroupRewards, centred, wide
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32


def grpo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """(R − group mean) / group standard deviation (GRPO, arXiv 2402.03300 section 4.1.2), group by group.

    The deviation of a group with one success in N is about 1/√N, so its success gets about √N: rare successes of hard
    prompts count much more than under a batch-wide deviation.
    """
    return [(centred(group) / (wide(group).std() + EPSILON)).astype(np.float32) for group in groups]


def dr_grpo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R − group mean, without a deviation (Dr. GRPO, arXiv 2503.20783 section 3.2): very easy and very hard prompts get
    no extra weight."""
    return [centred(group).astype(np.float32) for group in groups]
