"""Tell whether a group can teach: whether any of its rollouts can get an advantage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from brorl_graders import full_mark

from nemo_brorl.algorithm.advantages import disagree, pass_at_k_of_group
from nemo_brorl.algorithm.shaping import stop_properly
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.rewards import ShapingConfig
from nemo_brorl.types import ScoredGroup, is_right


@dataclass(frozen=True)
class Teaching:
    """What takes a group's advantages away although its raw rewards disagree."""

    pass_at_k: int | None = None  # k of the advantage pass_at_k: too few wrong rollouts; None: another advantage
    by_rewards: bool = True  # False: rewards are only measured
    truncated_factor: float = 1.0  # factor of truncated rollouts' rewards, which may make all of them equal

    @classmethod
    def from_config(cls, algorithm: AlgorithmConfig, shaping: ShapingConfig) -> Teaching:
        """Return what the settings ask of a group. Turns' returns are taken as they are."""
        if algorithm.advantage == "pass_at_k":
            return cls(pass_at_k=algorithm.pass_at_k)
        if algorithm.advantage == "none":
            return cls(by_rewards=False)
        return cls(truncated_factor=shaping.truncated_factor if algorithm.credit == "outcome" else 1.0)


BY_REWARDS = Teaching()


def can_teach(group: ScoredGroup, min_range: float, teaching: Teaching = BY_REWARDS) -> bool:
    """Return whether a group can have an advantage that is not 0.

    It has two rollouts at least whose raw rewards differ by `min_range` of the full mark, and still differ after
    truncated ones were shrunk. Under pass_at_k some of its subsets have a right rollout and some have none.
    """
    if not teaching.by_rewards or len(group.rewards) < 2:
        return False
    mark = full_mark(group.prompt.payload)
    if not disagree(group.rewards, min_range, mark):
        return False
    if teaching.pass_at_k is not None:
        return bool(pass_at_k_of_group(is_right(group), teaching.pass_at_k).any())
    if teaching.truncated_factor == 1.0:
        return True
    left = stop_properly(group.rewards.astype(np.float64), group.group.is_stopped, teaching.truncated_factor)
    return disagree(left.astype(np.float32), 0.0, mark)
