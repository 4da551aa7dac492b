"""Compute losses: pure functions from the tokens of one micro-batch to a summed loss and summed metrics.

`algorithm.loss` names one of `LOSSES`, or a function of your own as `package.module:function` (docs/howto/extend.md). A
loss computes an objective per token and passes it to `finish`, which adds what all losses share: importance weights,
the limit of `algorithm.loss_params.covariance`, the KL term and the entropy bonus.

A loss gets the sampled tokens of the responses of a micro-batch and returns sums over them, not means. The caller
divides by the number of such tokens in the whole mini-batch, over all micro-batches and data-parallel ranks. So the
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

# Nats. The exponential of more is no ratio to train on, and float32 overflows at 88.
MAX_LOG_RATIO = 20.0

SUPERVISED = frozenset({"cross_entropy"})  # losses that need neither old nor reference log-probs

KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda r: -r,
    "k2": lambda r: 0.5 * r.square(),
    "k3": lambda r: r.exp() - 1 - r,
}


def log_ratio_to_old(batch: TokenBatch) -> Tensor:
    """Return log π/π_old of every token [T], clamped to ± `MAX_LOG_RATIO` nats."""
    log_ratio = batch.log_probs - batch.old_log_probs
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo_clip(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Return PPO's clipped surrogate loss (arXiv 1707.06347 eq. 7), the loss of ProRLv2 and BroRL.

    The bounds `clip_low` and `clip_high` are separate (DAPO's clip-higher, arXiv 2503.14476 eq. 10). `dual_clip` bounds
    negative advantages (arXiv 1912.09729 eq. 5).
    """
    log_ratio = log_ratio_to_old(batch)
    ratio = log_ratio.exp()
    weight = advantages_with_kl(batch, config)
    unclipped = ratio * weight
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * weight
    objective = torch.minimum(unclipped, clipped)
    if config.dual_clip > 0:
        bounded = torch.maximum(objective, config.dual_clip * weight)
        objective = torch.where(weight < 0, bounded, objective)
    metrics = {"policy/clip_fraction": (unclipped > clipped).float().sum()}
    return finish(batch, config, objective, metrics)


def gspo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Return the loss of GSPO: one clipped ratio s = exp(mean over tokens of log π/π_old) per response.

    Source: arXiv 2507.18071 eq. 5–7. The loss is written per token as s without gradient times π / π without gradient
    (the paper's GSPO-token, eq. 14). The value is equal, and so is the gradient as long as a response has one
    advantage. So a response may be split over context-parallel ranks. Bounds are much narrower than PPO's (3e-4 and
    4e-4 in the paper). Use it with `algorithm.aggregation=sequence_mean`.
    """
    log_ratio = log_ratio_to_old(batch)
    sequence_ratio = batch.sequences.mean_of(log_ratio).exp()
    ratio = sequence_ratio * (batch.log_probs - batch.log_probs.detach()).exp()
    weight = advantages_with_kl(batch, config)
    unclipped = ratio * weight
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * weight
    objective = torch.minimum(unclipped, clipped)
    metrics = {"policy/clip_fraction": (unclipped > clipped).float().sum()}
    return finish(batch, config, objective, metrics)


def gmpo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Return the loss of GMPO: the geometric mean of a response's clipped token ratios, times its advantage.

    Source: arXiv 2507.20673 section 3. One token with an extreme ratio moves the mean of logarithms less than the mean
    of ratios. A token's ratio is bounded above by 1 + clip_high where the advantage is positive, and below by 1 −
    clip_low where it is negative. The paper's e^±0.4 is `clip_low=0.33 clip_high=0.49`. It is written per token, as in
    `gspo`: the mean without gradient times a ratio of value 1 that has the token's gradient. Use it with
    `algorithm.aggregation=sequence_mean`. Importance weights are the tokens' own, where verl takes their geometric mean
    over the response.
    """
    log_ratio = log_ratio_to_old(batch)
    weight = advantages_with_kl(batch, config)
    highest = math.log(1 + config.clip_high)
    lowest = math.log(1 - config.clip_low) if config.clip_low < 1 else -MAX_LOG_RATIO
    bounded = torch.where(weight > 0, log_ratio.clamp(max=highest), log_ratio.clamp(min=lowest))
    mean_ratio = batch.sequences.mean_of(bounded).exp()
    objective = mean_ratio * (bounded - bounded.detach()).exp() * weight
    metrics = {"policy/clip_fraction": (bounded != log_ratio).float().sum()}
    return finish(batch, config, objective, metrics)


def cispo(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Return the loss of CISPO: the clipped ratio without gradient, times advantage, times log π.

    Source: arXiv 2506.13585 eq. 4. The ratio π/π_old is clipped to [1 − clip_low, 1 + clip_high]. Rare tokens that
    PPO's clip would silence keep their gradient. With `clip_low=1` only the upper bound acts. The paper introduces it
    as the loss of MiniMax-M1.
    """
    log_ratio = log_ratio_to_old(batch).detach()
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = clipped * advantages_with_kl(batch, config) * batch.log_probs
    metrics = {"policy/clip_fraction": (ratio != clipped).float().sum()}
    return finish(batch, config, objective, metrics)


def cross_entropy(batch: TokenBatch, config: AlgorithmConfig) -> LossSums:
    """Return −log p summed over all response tokens, the loss of supervised fine-tuning."""
    return LossSums(-batch.log_probs.sum(), {})


LOSSES: dict[str, Loss] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "cross_entropy": cross_entropy,
}


def find_loss(name: str, config: AlgorithmConfig) -> Loss:
    """Return the loss function called `name`, with `algorithm.loss_params` filled in.

    The parameters apply only to the loss that `algorithm.loss` names, because the supervised warm-up has another loss.
    Raises ConfigError for a function that cannot be imported or a parameter that the function does not have.
    """
    function = find_function("algorithm.loss", name, LOSSES)
    params = config.own_loss_params if name == config.loss else {}
    return with_params("algorithm.loss_params", name, function, params)


def advantages_with_kl(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    """Return the batch's advantages [T], with the KL penalty subtracted under `algorithm.kl.placement=reward`.

    The penalty is the coefficient times the KL estimate of the old policy, summed over the token's response. It has no
    gradient, like a penalty in the reward, and is subtracted after the baseline.
    """
    if config.kl.placement != "reward" or batch.reference_log_probs is None:
        return batch.advantages
    kl = kl_to_reference(batch, batch.old_log_probs, config)
    return batch.advantages - config.kl.coefficient * batch.sequences.sum_of(kl)


def finish(
    batch: TokenBatch,
    config: AlgorithmConfig,
    objective: Tensor,
    metrics: dict[str, Tensor],
) -> LossSums:
    """Return the loss to minimise, and its metrics, for an objective per token [T] that training maximises.

    Multiplies importance weights, limits the tokens of `algorithm.loss_params.covariance`, adds the KL term (ProRL,
    arXiv 2505.24864) and the entropy bonus, and takes the weighted sum. `metrics` are sums over tokens.
    """
    correction = importance_weights(batch, config)
    loss = -(correction * objective)
    loss = apply_covariance(loss, batch, config.covariance)
    kl_to_old = KL_ESTIMATORS["k2"](log_ratio_to_old(batch))
    metrics = {**metrics, "policy/approximate_kl": kl_to_old.sum(), "policy/importance_weight": correction.sum()}
    if config.importance_correction.enabled and config.importance_correction.kind in ("icepop", "sequence_mask"):
        metrics["policy/importance_masked"] = (correction == 0).float().sum()
    if batch.covariance_mask is not None:
        metrics["policy/covariance_tokens"] = batch.covariance_mask.float().sum()
    if batch.reference_log_probs is not None:
        kl = kl_to_reference(batch, batch.log_probs, config)
        metrics["policy/kl_to_teacher" if config.kl.has_teacher else "policy/kl_to_reference"] = kl.sum()
        if config.kl.placement == "loss":
            loss = loss + config.kl.coefficient * kl
    if config.entropy_coefficient > 0:
        loss = loss - config.entropy_coefficient * batch.entropies
    detached = {name: value.detach() for name, value in metrics.items()}
    return LossSums((batch.weights * loss).sum(), detached)


def kl_to_reference(batch: TokenBatch, log_probs: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return the KL estimate of each token [T] between `log_probs` [T] and the reference, 0 where there is none."""
    assert batch.reference_log_probs is not None, "there is no KL term"
    kl = kl_per_token(log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
    return kl if batch.has_reference is None else torch.where(batch.has_reference, kl, 0.0)


def kl_per_token(
    log_probs: Tensor,
    reference_log_probs: Tensor,
    estimator: str,
    log_ratio_clamp: float,
) -> Tensor:
    """Return an estimate of KL(policy ‖ reference) for each token [T], in nats.

    Source: J. Schulman, "Approximating KL Divergence", 2020. With r = log p_reference − log p_policy, clamped to ±
    `log_ratio_clamp`: k1 = −r, k2 = r²/2, k3 = exp(r) − 1 − r. On on-policy samples the gradient of k2 as a loss is the
    gradient of the KL divergence itself. Those of k1 and k3 are not, which is why k2 is the default in the loss.
    """
    log_ratio = (reference_log_probs - log_probs).clamp(-log_ratio_clamp, log_ratio_clamp)
    return KL_ESTIMATORS[estimator](log_ratio)
