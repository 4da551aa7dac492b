"""Losses: pure functions from the tokens of one micro-batch to a summed loss and summed metrics. One algorithm a
file."""

from __future__ import annotations

from nemo_brorl.algorithm.losses.aggregation import MiniBatchSize, token_weights
from nemo_brorl.algorithm.losses.base import Loss, LossSums, Sequences, TokenBatch
from nemo_brorl.algorithm.losses.cispo import cispo
from nemo_brorl.algorithm.losses.cross_entropy import cross_entropy
from nemo_brorl.algorithm.losses.gspo import gspo
from nemo_brorl.algorithm.losses.ppo import ppo_clip

__all__ = ["LOSSES", "SUPERVISED", "Loss", "LossSums", "MiniBatchSize", "Sequences", "TokenBatch", "token_weights"]

LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "gspo": gspo, "cispo": cispo, "cross_entropy": cross_entropy}

SUPERVISED = frozenset({"cross_entropy"})  # these need neither old nor reference log-probs
