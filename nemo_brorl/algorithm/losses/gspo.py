"""GSPO: importance ratios and clipping of whole responses."""

from __future__ import annotations

import torch

from nemo_brorl.algorithm.losses.base import LossSums, TokenBatch
from nemo_brorl.algorithm.losses.regularisers import advantages, finish
from nemo_brorl.config.schema import AlgorithmConfig


def gspo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Sequence ratio s = exp(mean over tokens of log π/π_old), clipped as a whole (GSPO, arXiv 2507.18071 eq. 5–7).

    Written per token as s without gradient times π / π without gradient (the paper's GSPO-token, eq. 14), which has the
    same value and, with one advantage for a whole response, the same gradient; so a response may be cut over ranks.
    Bounds are much narrower than PPO's (3e-4 and 4e-4 in the paper); use it with `algorithm.aggregation=sequence_mean`.
    """
    log_ratio = batch.log_probs - batch.old_log_probs
    sequence_ratio = batch.sequences.mean_of(log_ratio).exp()
    ratio, weight = sequence_ratio * (batch.log_probs - batch.log_probs.detach()).exp(), advantages(batch, config)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = torch.minimum(ratio * weight, clipped * weight)
    metrics = {
        "policy/clip_fraction": ((ratio * weight) > (clipped * weight)).float().sum(),
        "policy/approximate_kl": (log_ratio.exp() - 1 - log_ratio).sum(),
    }
    return finish(batch, config, objective, metrics)
