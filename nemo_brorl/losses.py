"""Losses: pure functions from the tokens of one micro-batch to a summed loss and summed metrics.

Sums, not means: the caller divides by the number of response tokens of the whole mini-batch, over all micro-batches and
data-parallel ranks, which makes the token mean independent of how the mini-batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.kl import kl_per_token


@dataclass(frozen=True)
class TokenBatch:
    """Response tokens of one micro-batch, all [T] float32."""

    log_probs: Tensor  # under the weights being trained; carries the gradient
    entropies: Tensor  # of the distributions these tokens were scored under, nats; carries the gradient
    old_log_probs: Tensor  # Megatron, at the start of the update
    sampled_log_probs: Tensor  # vLLM, when the token was drawn
    reference_log_probs: Tensor | None  # None: no KL term
    advantages: Tensor


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of one micro-batch."""

    loss: Tensor  # scalar with gradient
    metrics: dict[str, Tensor]  # scalars without gradient; divide by the number of tokens


Loss = Callable[[TokenBatch, AlgorithmConfig], LossSums]


def ppo_clip(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """PPO's clipped surrogate (arXiv 1707.06347 eq. 7) with decoupled bounds (DAPO's clip-higher, arXiv 2503.14476 eq. 10),
    dual clip for negative advantages (arXiv 1912.09729 eq. 5), truncated importance sampling between sampler and trainer,
    a KL term in the loss (ProRL, arXiv 2505.24864), and a bonus for the exact entropy of each token's distribution."""
    log_ratio = batch.log_probs - batch.old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    if config.dual_clip > 0:
        floor = config.dual_clip * batch.advantages
        objective = torch.where(batch.advantages < 0, torch.maximum(objective, floor), objective)
    weights = importance_weights(batch, config)
    loss = -(weights * objective)
    metrics = {
        "policy/clip_fraction": ((ratio * batch.advantages) > (clipped * batch.advantages)).float().sum(),
        "policy/approximate_kl": (ratio - 1 - log_ratio).sum(),
        "policy/importance_weight": weights.sum(),
    }
    if batch.reference_log_probs is not None:
        kl = kl_per_token(batch.log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
        loss = loss + config.kl.coefficient * kl
        metrics["policy/kl_to_reference"] = kl.sum()
    if config.entropy_coefficient > 0:
        loss = loss - config.entropy_coefficient * batch.entropies
    return LossSums(loss.sum(), {name: value.detach() for name, value in metrics.items()})


def importance_weights(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    """min(p_Megatron,old / p_vLLM, cap) per token, without gradient: truncated importance sampling (Yao et al., "Your
    efficient RL framework secretly brings you off-policy RL training", 2025). Also covers carried, older groups."""
    if not config.importance_correction.enabled:
        return torch.ones_like(batch.old_log_probs)
    log_weights = batch.old_log_probs - batch.sampled_log_probs
    return log_weights.clamp(max=20.0).exp().clamp(max=config.importance_correction.cap)


def cross_entropy(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Supervised fine-tuning: −log p of every response token."""
    return LossSums(-batch.log_probs.sum(), {})


LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "cross_entropy": cross_entropy}

SUPERVISED = frozenset({"cross_entropy"})  # these need neither old nor reference log-probs
