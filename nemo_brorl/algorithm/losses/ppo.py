"""PPO's clipped surrogate with decoupled bounds."""

from __future__ import annotations

import torch

from nemo_brorl.algorithm.losses.base import LossSums, TokenBatch
from nemo_brorl.algorithm.losses.regularisers import advantages, finish
from nemo_brorl.config.schema import AlgorithmConfig


def ppo_clip(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """PPO's clipped surrogate (arXiv 1707.06347 eq. 7) with decoupled bounds (DAPO's clip-higher, arXiv 2503.14476 eq.
    10) and dual clip for negative advantages (arXiv 1912.09729 eq. 5). The loss of ProRLv2 and BroRL."""
    log_ratio = batch.log_probs - batch.old_log_probs
    ratio, weight = log_ratio.exp(), advantages(batch, config)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = torch.minimum(ratio * weight, clipped * weight)
    if config.dual_clip > 0:
        objective = torch.where(weight < 0, torch.maximum(objective, config.dual_clip * weight), objective)
    metrics = {
        "policy/clip_fraction": ((ratio * weight) > (clipped * weight)).float().sum(),
        "policy/approximate_kl": (ratio - 1 - log_ratio).sum(),
    }
    return finish(batch, config, objective, metrics)
