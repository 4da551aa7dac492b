"""REINFORCE++ and its variant with a group baseline: whitening over the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.advantages.base import GroupRewards, centred, whitened, wide
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32


def reinforce_plus_plus(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """(R − batch mean) / batch deviation (REINFORCE++, arXiv 2501.03262): one baseline for all prompts."""
    mean = float(np.concatenate([wide(group) for group in groups]).mean())
    return whitened([wide(group) - mean for group in groups])


def reinforce_plus_plus_baseline(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R − group mean, then divided by the standard deviation over all rollouts of the batch (REINFORCE++-baseline,
    arXiv 2501.03262; the advantage of ProRLv2 and BroRL).

    Whitening weighs every rollout alike; subtracting the batch mean would change nothing, since every centred group
    already sums to zero.
    """
    return whitened([centred(group) for group in groups])
