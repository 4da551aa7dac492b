"""From informative groups to what is learnt from: rewards are shaped, rollouts chosen, advantages computed, in this order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.advantages import advantages_by_wave, advantages_of
from nemo_brorl.advantages.base import GroupRewards
from nemo_brorl.advantages.per_wave import WaveMembers
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.rewards.shaping import shaped_rewards
from nemo_brorl.rollouts.down_sampling import max_variance_subset
from nemo_brorl.rollouts.success_posterior import places
from nemo_brorl.types import Float32, Int64, ScoredGroup, TrainBatch


def learning_batch(groups: Sequence[ScoredGroup], config: BroRLConfig, step: int) -> TrainBatch:
    """The batch of training step `step`, counted from 1. Raw rewards stay with the groups."""
    rewards = [shaped_rewards(group, config.rewards.shaping, config.rollouts.max_response_tokens, step) for group in groups]
    if any(group.waves for group in groups):
        of_groups = [GroupRewards(group.rewards, values) for group, values in zip(groups, rewards, strict=True)]
        advantages = advantages_by_wave(of_groups, [members_of_waves(group) for group in groups], config.algorithm)
        return TrainBatch(tuple(groups), tuple(advantages), tuple(np.arange(len(values)) for values in rewards))
    num_trained = config.algorithm.train_rollouts
    chosen = [np.arange(len(values)) if num_trained is None else max_variance_subset(values, num_trained) for values in rewards]
    trained = [
        GroupRewards(group.rewards[rollouts], values[rollouts]) for group, values, rollouts in zip(groups, rewards, chosen, strict=True)
    ]
    advantages = advantages_of(trained, config.algorithm)
    spread = [_spread(values, rollouts, len(all_)) for values, rollouts, all_ in zip(advantages, chosen, rewards, strict=True)]
    return TrainBatch(tuple(groups), tuple(spread), tuple(chosen))


def members_of_waves(scored: ScoredGroup) -> list[WaveMembers]:
    """Which rollouts of a group are of which wave, by their places; a group asked for at once is one wave."""
    if not scored.waves:
        return [WaveMembers(np.arange(len(scored.rewards)), 1.0)]
    ends = np.cumsum([wave.num_rollouts for wave in scored.waves])
    wave_of_rollout = np.searchsorted(ends, places(scored), side="right")
    return [WaveMembers(np.flatnonzero(wave_of_rollout == index), wave.weight) for index, wave in enumerate(scored.waves)]


def _spread(values: Float32, rollouts: Int64, size: int) -> Float32:
    """Values of some rollouts of a group as an array of all, 0 elsewhere."""
    spread = np.zeros(size, np.float32)
    spread[rollouts] = values
    return spread
