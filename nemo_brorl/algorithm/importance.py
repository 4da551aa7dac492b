"""Weigh sampled tokens by how probable they are under the trainer (Megatron) and under the sampler (vLLM).

Both compute slightly different probabilities from equal weights, and carried-over groups come from older weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_brorl.algorithm.token_batch import TokenBatch
from nemo_brorl.config.algorithm import AlgorithmConfig, ImportanceCorrectionConfig

_MAX_LOG = 20.0  # nats; largest logarithm of a weight, so that its exponential stays finite


def importance_weights(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    """Return the importance weights [T] of the kind in `algorithm.importance_correction`, or ones where it is off.

    The weights have no gradient. They are made of w = p_Megatron,old / p_vLLM:

    tis            min(w, cap): truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings
                   you off-policy RL training", 2025)
    icepop         w inside [low, high], 0 outside: tokens on which trainer and sampler disagree are not trained on
                   (IcePop, Ling team 2025)
    sequence_mask  tis, and 0 for all tokens of a response whose geometric mean of w is outside [low, high]
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
