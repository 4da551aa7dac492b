"""The batch that a run of some settings learns from."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import ScoredGroup, TrainBatch


def batch_of(groups: Sequence[ScoredGroup], config: BroRLConfig, loss_scale: float = 1.0) -> TrainBatch:
    """Return the batch of the first step."""
    shaping, max_tokens = config.rewards.shaping, config.rollouts.max_response_tokens
    return make_train_batch(groups, 1, config.algorithm, shaping, max_tokens, loss_scale)
