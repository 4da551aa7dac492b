"""Tokens as a loss takes them."""

from __future__ import annotations

import math

import torch

from nemo_brorl.algorithm.token_batch import ResponseIndex, TokenBatch


def tokens(
    log_ratios: list[float],
    advantages: list[float],
    lengths: list[int],
    *,
    mismatch: list[float] | None = None,
    reference: float | torch.Tensor | None = None,
) -> TokenBatch:
    """Responses of the given lengths end to end: log π/π_old, log π_old/π_vLLM (0) and log π_ref/π_old per token."""
    old = torch.full((len(log_ratios),), math.log(0.5))
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return TokenBatch(
        log_probs=(old + torch.tensor(log_ratios)).requires_grad_(),
        entropies=torch.zeros_like(old, requires_grad=True),
        old_log_probs=old,
        sampled_log_probs=old - torch.tensor(mismatch or [0.0] * len(log_ratios)),
        reference_log_probs=None if reference is None else old + reference,
        advantages=torch.tensor(advantages),
        weights=torch.ones_like(old),
        sequences=ResponseIndex(index, torch.tensor(lengths, dtype=torch.float32)),
    )
