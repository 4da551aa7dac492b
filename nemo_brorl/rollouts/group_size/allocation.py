"""Metrics of what rollouts were spent on: by them `rollouts.allocation` fixed and waves compare at equal compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from nemo_brorl.types import SUCCESS_REWARD, Float32, Prompt, ScoredGroup

PERCENTILES = (10, 50, 90)


@dataclass(frozen=True)
class Spent:
    """Totals of a run up to now; part of its state."""

    generated_tokens: int = 0  # response tokens, of groups that were not used too
    informative_groups: int = 0
    rollouts: int = 0  # of groups that have closed

    def plus(self, other: Spent) -> Spent:
        """After another step."""
        return Spent(
            generated_tokens=self.generated_tokens + other.generated_tokens,
            informative_groups=self.informative_groups + other.informative_groups,
            rollouts=self.rollouts + other.rollouts,
        )

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole run so far."""
        per_million = 0.0
        if self.generated_tokens:
            per_million = self.informative_groups / (self.generated_tokens / 1e6)
        return {
            "rollouts/generated_tokens": float(self.generated_tokens),
            "rollouts/informative_per_million_tokens": per_million,
        }

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    @staticmethod
    def from_state(state: Mapping[str, int]) -> Spent:
        """What `state_dict` gave."""
        return Spent(**state)


def allocation_metrics(groups: Sequence[ScoredGroup], num_per_prompt: int) -> dict[str, float]:
    """Metrics of all groups sampled in a step.

    group_size         rollouts per group: mean and percentiles
    extended           share of groups that got more than their first wave
    full               share of groups that got all N
    first_wave_reward  mean raw reward of first waves, every group alike: what `reward/mean` is under fixed
    wave_weight        weight of a wave's mean in its group's estimate, times the group's size over the wave's: 1 counts
                       as in a plain mean
    """
    sizes: list[int] = []
    weights: list[float] = []
    first_rewards: list[float] = []
    num_extended = 0
    num_full = 0
    for group in groups:
        size = len(group.rewards)
        sizes.append(size)
        weights.extend(relative_weights(group))
        first_rewards.append(float(first_wave(group).mean()))
        num_extended += len(group.waves) > 1
        num_full += size >= num_per_prompt
    metrics = {
        "rollouts/group_size": float(np.mean(sizes)),
        "rollouts/extended": num_extended / len(groups),
        "rollouts/full": num_full / len(groups),
        "rollouts/first_wave_reward": float(np.mean(first_rewards)),
        "rollouts/wave_weight_mean": float(np.mean(weights)),
        "rollouts/wave_weight_variance": float(np.var(weights)),
        "rollouts/wave_weight_max": float(np.max(np.abs(weights))),
    }
    for share in PERCENTILES:
        metrics[f"rollouts/group_size_p{share}"] = float(np.percentile(sizes, share))
    return metrics


def relative_weights(group: ScoredGroup) -> list[float]:
    """One number per wave; 1 where a rollout counts as in a plain mean over the group."""
    if not group.waves:
        return [1.0]
    size = sum(wave.num_rollouts for wave in group.waves)
    return [wave.weight * size / wave.num_rollouts for wave in group.waves]


def outcomes(groups: Sequence[ScoredGroup]) -> list[tuple[Prompt, float]]:
    """Prompts, by their uids, each with the share of correct rollouts in its first wave."""
    found = []
    for group in sorted(groups, key=lambda group: group.prompt.uid):
        rewards = first_wave(group)
        is_correct = rewards >= SUCCESS_REWARD
        rate = float(is_correct.mean())
        found.append((group.prompt, rate))
    return found


def first_wave(group: ScoredGroup) -> Float32:
    """Raw rewards of the rollouts whose number did not depend on any reward."""
    if not group.waves:
        return group.rewards
    is_first = group.indices < group.waves[0].num_rollouts
    return group.rewards[is_first]
