"""Losses: pure functions from the tokens of one micro-batch to a summed loss and summed metrics.

`algorithm.loss` names one of `LOSSES`, or a function of your own as `package.module:function` (docs/extending.md). A
loss writes its objective per token and hands it to `finish`, which adds what all losses share: importance weights,
tokens that are held, the KL term, the entropy bonus.

A loss takes the response tokens of a micro-batch that were sampled, and gives sums over them, not means: the caller
divides by the number of these tokens of the whole mini-batch, over all micro-batches and data-parallel ranks, so the
result does not depend on how the mini-batch was cut.

Legend: T sampled tokens of this rank's part of a micro-batch, R responses of the micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from brorl_graders.base.components import find_function, with_params
from torch import Tensor

from nemo_brorl.algorithm.covariance import apply_covariance
from nemo_brorl.algorithm.importance import importance_weights
from nemo_brorl.algorithm.token_batch import LossSums, TokenBatch
from nemo_brorl.config.algorithm import AlgorithmConfig

Loss = Callable[[TokenBatch, AlgorithmConfig], LossSums]

MAX_LOG_RATIO = 20.0  # nats: an exponential beyond is no ratio that anything should be learnt from, and overflows at 88

SUPERVISED = frozenset({"cross_entropy"})  # these need neither old nor reference log-probs

KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda r: -r,
    "k2": lambda r: 0.5 * r.square(),
    "k3": lambda r: r.exp() - 1 - r,
}


def log_ratio_to_old(batch: TokenBatch) -> Tensor:
    """log π/π_old of every token [T], bounded."""
    log_ratio = batch.log_probs - batch.old_log_probs
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo_clip(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """PPO's clipped surrogate (arXiv 1707.06347 eq. 7) with decoupled bounds (DAPO's clip-higher, arXiv 2503.14476 eq.
    10) and dual clip for negative advantages (arXiv 1912.09729 eq. 5). The loss of ProRLv2 and BroRL."""
    log_ratio = log_ratio_to_old(batch)
    ratio = log_ratio.exp()
    weight = advantages_with_kl(batch, config)
    unclipped = ratio * weight
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * weight
    objective = torch.minimum(unclipped, clipped)
    if config.dual_clip > 0:
        bounded = torch.maximum(objective, config.dual_clip * weight)
        objective = torch.where(weight < 0, bounded, objective)
    metrics = {
        "policy/clip_fraction": (unclipped > clipped).float().sum(),
        "policy/approximate_kl": (ratio - 1 - log_ratio).sum(),
    }
    return finish(batch, config, objective, metrics)


def gspo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Sequence ratio s = exp(mean over tokens of log π/π_old), clipped as a whole (GSPO, arXiv 2507.18071 eq. 5–7).

    Written per token as s without gradient times π / π without gradient (the paper's GSPO-token, eq. 14), which has the
    same value and, with one advantage for a whole response, the same gradient; so a response may be cut over ranks.
    Bounds are much narrower than PPO's (3e-4 and 4e-4 in the paper); use it with `algorithm.aggregation=sequence_mean`.
    """
    log_ratio = log_ratio_to_old(batch)
    sequence_ratio = batch.sequences.mean_of(log_ratio).exp()
    ratio = sequence_ratio * (batch.log_probs - batch.log_probs.detach()).exp()
    weight = advantages_with_kl(batch, config)
    unclipped = ratio * weight
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * weight
    objective = torch.minimum(unclipped, clipped)
    metrics = {
        "policy/clip_fraction": (unclipped > clipped).float().sum(),
        "policy/approximate_kl": (log_ratio.exp() - 1 - log_ratio).sum(),
    }
    return finish(batch, config, objective, metrics)


def gmpo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Geometric mean over a response's tokens of their clipped ratios, times its advantage (GMPO, arXiv 2507.20673
    section 3): one token with a wild ratio moves the mean of logarithms less than that of ratios.

    A token's ratio is bounded above by 1 + clip_high where the advantage is positive and below by 1 − clip_low where it
    is negative; the paper's e^±0.4 is `clip_low=0.33 clip_high=0.49`. Per token as `gspo`: the mean without gradient
    times a ratio of value 1 with the token's gradient; use it with `algorithm.aggregation=sequence_mean`.
    """
    log_ratio = log_ratio_to_old(batch)
    weight = advantages_with_kl(batch, config)
    highest = math.log(1 + config.clip_high)
    lowest = math.log(1 - config.clip_low) if config.clip_low < 1 else -MAX_LOG_RATIO
    bounded = torch.where(weight > 0, log_ratio.clamp(max=highest), log_ratio.clamp(min=lowest))
    mean_ratio = batch.sequences.mean_of(bounded).exp()
    objective = mean_ratio * (bounded - bounded.detach()).exp() * weight
    metrics = {
        "policy/clip_fraction": (bounded != log_ratio).float().sum(),
        "policy/approximate_kl": (log_ratio.exp() - 1 - log_ratio).sum(),
    }
    return finish(batch, config, objective, metrics)


def cispo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """clip(π/π_old, 1 − clip_low, 1 + clip_high) without gradient, times advantage times log π (CISPO, MiniMax-M1,
    arXiv 2506.13585 eq. 4): rare tokens that PPO's clip would silence go on learning. With `clip_low=1` only the upper
    bound acts."""
    log_ratio = log_ratio_to_old(batch).detach()
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = clipped * advantages_with_kl(batch, config) * batch.log_probs
    metrics = {
        "policy/clip_fraction": (ratio != clipped).float().sum(),
        "policy/approximate_kl": (ratio - 1 - log_ratio).sum(),
    }
    return finish(batch, config, objective, metrics)


def cross_entropy(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """−log p of every response token: supervised fine-tuning."""
    return LossSums(-batch.log_probs.sum(), {})


LOSSES: dict[str, Loss] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "cross_entropy": cross_entropy,
}


def find_loss(name: str, config: AlgorithmConfig) -> Loss:
    """The loss of this name, `algorithm.loss` with `algorithm.loss_params`. Raises ConfigError."""
    function = find_function("algorithm.loss", name, LOSSES)
    params = config.own_loss_params if name == config.loss else {}  # the warm-up has a loss of its own
    return with_params("algorithm.loss_params", name, function, params)


def advantages_with_kl(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    """The batch's advantages [T]; with `kl.placement=reward` less coefficient × the response's summed KL estimate under
    the old policy, without gradient (as a penalty in the reward does, after the baseline)."""
    if config.kl.placement != "reward" or batch.reference_log_probs is None:
        return batch.advantages
    kl = kl_per_token(batch.old_log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
    return batch.advantages - config.kl.coefficient * batch.sequences.sum_of(kl)


def finish(
    batch: TokenBatch,
    config: AlgorithmConfig,
    objective: Tensor,
    metrics: dict[str, Tensor],
) -> LossSums:
    """From an objective per token [T], which is to grow, to the loss: importance weights, tokens that are held, KL
    (ProRL, arXiv 2505.24864), entropy, weighted sum. `metrics` are sums over tokens."""
    correction = importance_weights(batch, config)
    loss = -(correction * objective)
    loss = apply_covariance(loss, batch, config.covariance)
    metrics = {**metrics, "policy/importance_weight": correction.sum()}
    if config.importance_correction.enabled and config.importance_correction.kind in ("icepop", "sequence_mask"):
        metrics["policy/importance_masked"] = (correction == 0).float().sum()
    if batch.covariance_mask is not None:
        metrics["policy/covariance_tokens"] = batch.covariance_mask.float().sum()
    if batch.reference_log_probs is not None:
        kl = kl_per_token(batch.log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
        metrics["policy/kl_to_reference"] = kl.sum()
        if config.kl.placement == "loss":
            loss = loss + config.kl.coefficient * kl
    if config.entropy_coefficient > 0:
        loss = loss - config.entropy_coefficient * batch.entropies
    detached = {name: value.detach() for name, value in metrics.items()}
    return LossSums((batch.weights * loss).sum(), detached)


def kl_per_token(
    log_probs: Tensor,
    reference_log_probs: Tensor,
    estimator: str,
    log_ratio_clamp: float,
) -> Tensor:
    """Estimate of KL(policy ‖ reference) for each token [T] in nats (J. Schulman, "Approximating KL Divergence", 2020).

    With r = log p_reference − log p_policy, clamped to ± log_ratio_clamp: k1 = −r, k2 = r²/2, k3 = exp(r) − 1 − r. The
    gradient of k2 as a loss is the gradient of the KL divergence itself on on-policy samples; those of k1 and k3 are
    not, which is why k2 is the default in the loss.
    """
    log_ratio = (reference_log_probs - log_probs).clamp(-log_ratio_clamp, log_ratio_clamp)
    return KL_ESTIMATORS[estimator](log_ratio)
