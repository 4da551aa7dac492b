"""MaxRL: towards the gradient of log success probability instead of success probability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.advantages.base import Float64, GroupRewards, centred, wide
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32


def maxrl(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """(R − group mean) / group mean (MaxRL, arXiv 2602.02710): averaging score functions over the successes alone, with
    a baseline, is an unbiased gradient of the likelihood objective truncated at order N, so a larger N comes closer to
    maximum likelihood. Needs rewards that are not negative; a group without any reward gets zeros.
    """
    return [_of_group(group).astype(np.float32) for group in groups]


def _of_group(group: GroupRewards) -> Float64:
    mean = wide(group).mean()
    return centred(group) / mean if mean > 0 else np.zeros_like(centred(group))
