"""Supervised fine-tuning."""

from __future__ import annotations

from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.losses.base import LossSums, TokenBatch


def cross_entropy(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """−log p of every response token."""
    return LossSums(-batch.log_probs.sum(), {})
