"""What rollouts were spent on: the numbers by which `rollouts.allocation` fixed and waves compare at equal compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from nemo_brorl.types import ScoredGroup

PERCENTILES = (10, 50, 90)


@dataclass(frozen=True)
class Spent:
    """Totals of a run up to now; part of its state."""

    generated_tokens: int = 0  # response tokens, of groups that were not used too
    informative_groups: int = 0

    def plus(self, generated_tokens: int, informative_groups: int) -> Spent:
        """After another step."""
        return Spent(self.generated_tokens + generated_tokens, self.informative_groups + informative_groups)

    def metrics(self) -> dict[str, float]:
        """Of the whole run so far."""
        millions = self.generated_tokens / 1e6
        return {
            "rollouts/generated_tokens": float(self.generated_tokens),
            "rollouts/informative_per_million_tokens": self.informative_groups / millions if millions else 0.0,
        }

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    @staticmethod
    def from_state(state: Mapping[str, int]) -> Spent:
        """What `state_dict` gave."""
        return Spent(**state)


def allocation_metrics(groups: Sequence[ScoredGroup], num_per_prompt: int) -> dict[str, float]:
    """Of all groups sampled in a step.

    group_size         rollouts per group: mean and percentiles
    extended           share of groups that got more than their first wave
    full               share of groups that got all N
    first_wave_reward  mean raw reward of first waves, every group alike: what `reward/mean` is under fixed
    wave_weight        of the mean of a wave in its group's estimate, times the group's size over the wave's: 1 counts
    as in a plain mean
    """
    sizes = np.array([len(group.rewards) for group in groups])
    weights = np.concatenate([relative_weights(group) for group in groups])
    return {
        "rollouts/group_size": float(sizes.mean()),
        **{f"rollouts/group_size_p{share}": float(np.percentile(sizes, share)) for share in PERCENTILES},
        "rollouts/extended": float(np.mean([len(group.waves) > 1 for group in groups])),
        "rollouts/full": float((sizes >= num_per_prompt).mean()),
        "rollouts/first_wave_reward": float(np.mean([first_wave_reward(group) for group in groups])),
        "rollouts/wave_weight_mean": float(weights.mean()),
        "rollouts/wave_weight_variance": float(weights.var()),
        "rollouts/wave_weight_max": float(np.abs(weights).max()),
    }


def relative_weights(group: ScoredGroup) -> np.ndarray:
    """One number per wave; 1 where a rollout counts as in a plain mean over the group."""
    if not group.waves:
        return np.ones(1)
    sizes = np.array([wave.num_rollouts for wave in group.waves])
    return np.array([wave.weight for wave in group.waves]) * sizes.sum() / sizes


def first_wave_reward(group: ScoredGroup) -> float:
    """Mean raw reward of the rollouts whose number did not depend on any reward."""
    if not group.waves:
        return float(group.rewards.mean())
    places = np.concatenate([chunk.indices for chunk in group.group.chunks])
    return float(group.rewards[places < group.waves[0].num_rollouts].mean())
