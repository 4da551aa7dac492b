"""From informative groups to what is learnt from: rewards are shaped, rollouts chosen, advantages computed, in this order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.advantages import advantages_of
from nemo_brorl.advantages.base import GroupRewards
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.rewards.shaping import shaped_rewards
from nemo_brorl.rollouts.down_sampling import max_variance_subset
from nemo_brorl.types import Float32, Int64, ScoredGroup, TrainBatch


def learning_batch(groups: Sequence[ScoredGroup], config: BroRLConfig, step: int) -> TrainBatch:
    """The batch of training step `step`, counted from 1. Raw rewards stay with the groups."""
    rewards = [shaped_rewards(group, config.rewards.shaping, config.rollouts.max_response_tokens, step) for group in groups]
    num_trained = config.algorithm.train_rollouts
    chosen = [np.arange(len(values)) if num_trained is None else max_variance_subset(values, num_trained) for values in rewards]
    trained = [
        GroupRewards(group.rewards[rollouts], values[rollouts]) for group, values, rollouts in zip(groups, rewards, chosen, strict=True)
    ]
    advantages = advantages_of(trained, config.algorithm)
    spread = [_spread(values, rollouts, len(all_)) for values, rollouts, all_ in zip(advantages, chosen, rewards, strict=True)]
    return TrainBatch(tuple(groups), tuple(spread), tuple(chosen))


def _spread(values: Float32, rollouts: Int64, size: int) -> Float32:
    """Values of some rollouts of a group as an array of all, 0 elsewhere."""
    spread = np.zeros(size, np.float32)
    spread[rollouts] = values
    return spread
