"""Losses: pure functions from the tokens of one micro-batch to a summed loss and summed metrics.

`algorithm.loss` names one of `LOSSES`, or a function of your own as `package.module:function` (docs/extending.md). A
loss writes its objective per token and hands it to `finish`, which adds what all losses share: importance weights,
tokens that are held, the KL term, the entropy bonus.

Importance weights are for tokens that vLLM drew and Megatron scores: the two compute slightly different probabilities
of the same weights, and carried groups come from older weights.

A loss takes the response tokens of a micro-batch that were sampled, and gives sums over them, not means: the caller
divides by the number of these tokens of the whole mini-batch, over all micro-batches and data-parallel ranks, so the
result does not depend on how the mini-batch was cut.

Legend: T sampled tokens of this rank's part of a micro-batch, R responses of the micro-batch.

Clip-Cov and KL-Cov (arXiv 2505.22617, section 4) hold the tokens that take the policy's entropy away. To first order a
policy gradient step changes the entropy by minus the covariance of log-prob and advantage. A token's part in it is,
with means over the n tokens of a mini-batch,

    Cov(y) = (log π(y) − mean log π) (A(y) − mean A)

and a few tokens have nearly all of it. Of these `share` · n, at least one, are held:

    clip_cov  drawn evenly among those with `low` ≤ Cov ≤ `high`; they get no gradient from their advantage
    kl_cov    those with the largest Cov; `coefficient` · |log π/π_old| is added to their loss, as in the authors' code

The paper takes π of the moment. Here it is that which a token was sampled with, known of every token before the first
forward pass: means, ranks and draws are over the whole mini-batch on all ranks, however it is cut into micro-batches,
and cost no pass of their own. In the first mini-batch the two are the same but for rounding. In later ones a clipped
ratio has moved by some 0.2 nats, where a token that is chosen stands out by several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.config.algorithm import AlgorithmConfig, CovarianceConfig, ImportanceCorrectionConfig
from nemo_brorl.core.components import find_function, with_params


@dataclass(frozen=True)
class Sequences:
    """The response that each token is of. Under context parallelism a response's tokens lie on several ranks."""

    index: Tensor  # [T] int64, into R
    lengths: Tensor  # [R] float32, sampled tokens of the whole responses
    group: dist.ProcessGroup | None = None  # the ranks that hold the other tokens; None: there are none

    @torch.no_grad()
    def sums(self, values: Tensor) -> Tensor:
        """Sum of values [T] over every whole response [R]; without gradient. Collective over the group."""
        total = torch.zeros_like(self.lengths, dtype=values.dtype).index_add_(0, self.index, values.detach())
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        return total

    def sum_of(self, values: Tensor) -> Tensor:
        """Every token's response's sum [T]."""
        return self.sums(values)[self.index]

    def mean_of(self, values: Tensor) -> Tensor:
        """Every token's response's mean [T]."""
        means = self.sums(values) / self.lengths
        return means[self.index]


@dataclass(frozen=True)
class TokenBatch:
    """Sampled tokens of one micro-batch, all [T] float32."""

    log_probs: Tensor  # under the weights being trained; carries the gradient
    entropies: Tensor  # entropies of the distributions these tokens were scored under, nats; carries the gradient
    old_log_probs: Tensor  # Megatron, at the start of the update
    sampled_log_probs: Tensor  # vLLM, when the token was drawn
    reference_log_probs: Tensor | None  # None: no KL term
    advantages: Tensor
    weights: Tensor  # weight of each token in the mean, see `token_weights`
    sequences: Sequences
    is_held: Tensor | None = None  # bool: held by the parameter `covariance`; None: none is


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of one micro-batch."""

    loss: Tensor  # scalar with gradient
    metrics: dict[str, Tensor]  # scalars without gradient; divide by the number of tokens


@dataclass(frozen=True)
class MiniBatchSize:
    """Size of a whole mini-batch, over all ranks."""

    num_tokens: int  # sampled tokens
    num_sequences: int  # responses
    num_turns: int  # of these
    max_tokens: int  # that a response may have


class TokenLengths(NamedTuple):
    """Of each token [T] float32, in sampled tokens."""

    sequence: Tensor  # of its response
    turn: Tensor  # of its turn
    num_turns: Tensor  # that its response has


def token_weights(aggregation: str, lengths: TokenLengths, size: MiniBatchSize) -> Tensor:
    """Weights [T] of tokens in the mean of the loss. The caller divides the weighted sum by the mini-batch's tokens.

    token_mean     1: every token counts alike, long responses more (DAPO, arXiv 2503.14476 equation 12)
    sequence_mean  every response counts alike: mean over its tokens, then over responses (GRPO, arXiv 2402.03300; GSPO)
    constant       sums over responses divided by a constant length, so that no response's length enters (Dr. GRPO,
                   arXiv 2503.20783)
    turn_mean      every turn counts alike: mean over its tokens, then over turns, so that long trajectories count more
    sequence_turn_mean  every response counts alike, and every turn of it: mean over tokens, then turns, then responses
    """
    if aggregation == "token_mean":
        return torch.ones_like(lengths.sequence)
    tokens_per_sequence = size.num_tokens / size.num_sequences
    if aggregation == "sequence_mean":
        return tokens_per_sequence / lengths.sequence
    if aggregation == "turn_mean":
        return size.num_tokens / size.num_turns / lengths.turn
    if aggregation == "sequence_turn_mean":
        return tokens_per_sequence / (lengths.num_turns * lengths.turn)
    assert aggregation == "constant", aggregation
    return torch.full_like(lengths.sequence, tokens_per_sequence / size.max_tokens)


Gather = Callable[[Any], list[Any]]  # what every rank has, in the order of ranks; collective


def choose_held(
    log_probs: Tensor,
    advantages: Tensor,
    draws: Tensor,
    config: CovarianceConfig,
    gather: Gather,
) -> Tensor:
    """Which of this rank's tokens of a mini-batch are held [T] bool. `draws` [T]: evenly from 0 to 1, of clip_cov.
    Collective over the ranks that share the mini-batch."""
    own_sums = [
        len(log_probs),
        float(log_probs.double().sum()),
        float(advantages.double().sum()),
    ]
    num_tokens, log_prob, advantage = np.sum(gather(own_sums), axis=0)
    mean_log_prob = log_prob / num_tokens
    mean_advantage = advantage / num_tokens
    order = (log_probs - mean_log_prob) * (advantages - mean_advantage)
    if config.kind == "clip_cov":
        is_above = order >= config.low
        is_below = order <= config.high
        order = torch.where(is_above & is_below, draws, -torch.inf)
    num_held = max(1, int(config.share * num_tokens))
    num_own = min(num_held, len(order))
    own_highest, _ = order.topk(num_own)
    highest = gather(own_highest.cpu().numpy())
    ascending = np.sort(np.concatenate(highest))
    least = float(ascending[-num_held:][0])
    is_held = order >= least
    return is_held & (order > -torch.inf)


def hold_chosen(loss: Tensor, batch: TokenBatch, config: CovarianceConfig) -> Tensor:
    """The loss of each token [T] with those held that were chosen."""
    if batch.is_held is None:
        return loss
    if config.kind == "clip_cov":
        return torch.where(batch.is_held, loss.detach(), loss)
    distance = (batch.log_probs - batch.old_log_probs).abs()
    return loss + config.coefficient * distance * batch.is_held


Loss = Callable[[TokenBatch, AlgorithmConfig], LossSums]

MAX_LOG_RATIO = 20.0  # nats: an exponential beyond is no ratio that anything should be learnt from, and overflows at 88


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

SUPERVISED = frozenset({"cross_entropy"})  # these need neither old nor reference log-probs


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
    loss = hold_chosen(loss, batch, config.covariance)
    metrics = {**metrics, "policy/importance_weight": correction.sum()}
    if config.importance_correction.enabled and config.importance_correction.kind in ("icepop", "sequence_mask"):
        metrics["policy/importance_masked"] = (correction == 0).float().sum()
    if batch.is_held is not None:
        metrics["policy/held_tokens"] = batch.is_held.float().sum()
    if batch.reference_log_probs is not None:
        kl = kl_per_token(batch.log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
        metrics["policy/kl_to_reference"] = kl.sum()
        if config.kl.placement == "loss":
            loss = loss + config.kl.coefficient * kl
    if config.entropy_coefficient > 0:
        loss = loss - config.entropy_coefficient * batch.entropies
    detached = {name: value.detach() for name, value in metrics.items()}
    return LossSums((batch.weights * loss).sum(), detached)


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda r: -r,
    "k2": lambda r: 0.5 * r.square(),
    "k3": lambda r: r.exp() - 1 - r,
}


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


_MAX_LOG = 20.0  # keeps the exponential finite


def importance_weights(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    """Weights [T] of the kind in `algorithm.importance_correction`, from w = p_Megatron,old / p_vLLM, without gradient;
    ones where it is off.

    tis            min(w, cap): truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings
                   you off-policy RL training", 2025)
    icepop         w inside [low, high], 0 outside: a token the two disagree about teaches nothing (IcePop, Ling team
                   2025)
    sequence_mask  tis, and 0 for all of a response whose geometric mean of w is outside [low, high]
    sequence_tis   min(Π w, cap) over the whole response for each of its tokens: truncated importance sampling
                   (Ionides, J. Comput. Graph. Stat. 17, 2008) of responses; unbiased up to the cap, noisy for long ones
    """
    settings = config.importance_correction
    if not settings.enabled:
        return torch.ones_like(batch.old_log_probs)
    log_weights = (batch.old_log_probs - batch.sampled_log_probs).detach()
    weights = log_weights.clamp(max=_MAX_LOG).exp()
    if settings.kind == "icepop":
        return torch.where(_is_inside(weights, settings), weights, 0.0)
    if settings.kind == "sequence_tis":
        totals = batch.sequences.sum_of(log_weights).clamp(max=_MAX_LOG)
        return totals.exp().clamp(max=settings.cap)
    truncated = weights.clamp(max=settings.cap)
    if settings.kind == "tis":
        return truncated
    means = batch.sequences.mean_of(log_weights).clamp(max=_MAX_LOG).exp()
    return torch.where(_is_inside(means, settings), truncated, 0.0)


def _is_inside(values: Tensor, settings: ImportanceCorrectionConfig) -> Tensor:
    return (values >= settings.low) & (values <= settings.high)
