"""A weight per group that lets rare successes count for more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.advantages.base import GroupRewards
from nemo_brorl.types import Float32


def weigh_rare_successes(
    advantages: Sequence[Float32], groups: Sequence[GroupRewards], exponent: float
) -> list[Float32]:
    """Advantages times (1 − share of correct rollouts)^exponent of their group (F-GRPO, arXiv 2602.06717), after any
    normalisation. Exponent 0 changes nothing."""
    shares = [float(np.mean(group.is_correct)) for group in groups]
    return [values * np.float32((1.0 - share) ** exponent) for values, share in zip(advantages, shares, strict=True)]
