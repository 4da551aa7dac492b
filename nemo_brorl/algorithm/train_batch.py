"""From informative groups to what is learnt from: rewards are shaped, rollouts chosen, advantages computed, in this
order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.advantages import advantages_by_wave, advantages_of
from nemo_brorl.algorithm.advantages.base import GroupRewards
from nemo_brorl.algorithm.advantages.per_wave import WaveMembers
from nemo_brorl.algorithm.down_sampling import max_variance_subset
from nemo_brorl.algorithm.reward_shaping import shaped_rewards
from nemo_brorl.config.schema import AlgorithmConfig, BroRLConfig
from nemo_brorl.types import Float32, Int64, ScoredGroup, TrainBatch


def learning_batch(groups: Sequence[ScoredGroup], config: BroRLConfig, step: int) -> TrainBatch:
    """The batch of training step `step`, counted from 1. Raw rewards stay with the groups. The tail of a group is
    judged within the whole group and trained alone."""
    rewards = [
        GroupRewards(
            group.rewards, shaped_rewards(group, config.rewards.shaping, config.rollouts.max_response_tokens, step)
        )
        for group in groups
    ]
    trained = [_trained(group, values, config.algorithm) for group, values in zip(groups, rewards, strict=True)]
    if any(group.waves for group in groups):
        of_all = advantages_by_wave(rewards, [members_of_waves(group) for group in groups], config.algorithm)
    else:
        of_all = _advantages(groups, rewards, trained, config.algorithm)
    advantages = [_only(values, rollouts) for values, rollouts in zip(of_all, trained, strict=True)]
    return TrainBatch(tuple(groups), tuple(advantages), tuple(trained))


def _trained(group: ScoredGroup, rewards: GroupRewards, config: AlgorithmConfig) -> Int64:
    """Indices of the rollouts that are learnt from: of a tail those that no step has learnt from, else the chosen ones,
    else all."""
    if group.learn_from is not None:
        return group.learn_from
    if config.train_rollouts is not None:
        return max_variance_subset(rewards.shaped, config.train_rollouts)
    return np.arange(len(rewards.raw))


def _advantages(
    groups: Sequence[ScoredGroup], rewards: Sequence[GroupRewards], trained: Sequence[Int64], config: AlgorithmConfig
) -> list[Float32]:
    """[N] per group. A chosen subset is compared within itself, a tail within its group."""
    compared = [
        np.arange(len(values.raw)) if group.learn_from is not None else rollouts
        for group, values, rollouts in zip(groups, rewards, trained, strict=True)
    ]
    values = advantages_of(
        [GroupRewards(r.raw[some], r.shaped[some]) for r, some in zip(rewards, compared, strict=True)], config
    )
    return [_spread(value, some, len(r.raw)) for value, some, r in zip(values, compared, rewards, strict=True)]


def members_of_waves(scored: ScoredGroup) -> list[WaveMembers]:
    """Which rollouts of a group are of which wave, by their places; a group asked for at once is one wave."""
    if not scored.waves:
        return [WaveMembers(np.arange(len(scored.rewards)), 1.0)]
    ends = np.cumsum([wave.num_rollouts for wave in scored.waves])
    wave_of_rollout = np.searchsorted(ends, scored.indices, side="right")
    return [
        WaveMembers(np.flatnonzero(wave_of_rollout == index), wave.weight) for index, wave in enumerate(scored.waves)
    ]


def _spread(values: Float32, rollouts: Int64, size: int) -> Float32:
    """Values of some rollouts of a group as an array of all, 0 elsewhere."""
    spread = np.zeros(size, np.float32)
    spread[rollouts] = values
    return spread


def _only(values: Float32, rollouts: Int64) -> Float32:
    """Values [N] with 0 for all other rollouts."""
    return _spread(values[rollouts], rollouts, len(values))
