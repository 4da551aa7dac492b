"""Supervised fine-tuning."""

from __future__ import annotations

from nemo_brorl.algorithm.losses.base import LossSums, TokenBatch
from nemo_brorl.config.schema import AlgorithmConfig


def cross_entropy(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """−log p of every response token."""
    return LossSums(-batch.log_probs.sum(), {})
