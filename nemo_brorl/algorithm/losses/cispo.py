"""CISPO: clip the importance weight, keep every token's gradient."""

from __future__ import annotations

from nemo_brorl.algorithm.losses.base import LossSums, TokenBatch
from nemo_brorl.algorithm.losses.regularisers import advantages, finish
from nemo_brorl.config.schema import AlgorithmConfig


def cispo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """clip(π/π_old, 1 − clip_low, 1 + clip_high) without gradient, times advantage times log π (CISPO, MiniMax-M1,
    arXiv 2506.13585 eq. 4): rare tokens that PPO's clip would silence go on learning. With `clip_low=1` only the upper
    bound acts."""
    log_ratio = (batch.log_probs - batch.old_log_probs).detach()
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    metrics = {
        "policy/clip_fraction": (ratio != clipped).float().sum(),
        "policy/approximate_kl": (ratio - 1 - log_ratio).sum(),
    }
    return finish(batch, config, clipped * advantages(batch, config) * batch.log_probs, metrics)
