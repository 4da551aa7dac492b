"""Log-probs of given tokens from vocab-parallel logits, without the whole vocabulary of more than a few tokens at once.

Own code because Megatron's cross entropies (0.16.1) count the padded vocabulary in the normaliser, and one overwrites the
logits while the other rounds its gradient to bf16. The output layer is part of the function: forward keeps one number per
token, backward computes the logits of a chunk again. So no more than `chunk` rows of logits exist at any time.

Legend: n tokens, h hidden size, v vocabulary rows of this tensor-parallel rank (padding included), c rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class VocabSlice:
    """Which rows of the vocabulary this rank holds: [first, first + num_valid), then padding."""

    first: int
    num_valid: int
    group: dist.ProcessGroup | None  # None: this rank has all of it


def vocab_slice(vocab_size: int, num_rows: int, group: dist.ProcessGroup | None) -> VocabSlice:
    """The slice of a rank that holds `num_rows` rows of a vocabulary padded to num_rows * group size."""
    if group is None or group.size() == 1:
        return VocabSlice(0, min(vocab_size, num_rows), None)
    first = group.rank() * num_rows
    return VocabSlice(first, max(0, min(num_rows, vocab_size - first)), group)


def token_log_probs(hidden: Tensor, weight: Tensor, targets: Tensor, vocab: VocabSlice, temperature: float, chunk: int) -> Tensor:
    """log softmax(hidden @ weight.T / temperature)[target] per token, [n] float32, the same on every tensor-parallel rank.

    `hidden` [n, h] is the same on all ranks and its gradient is this rank's share only (Megatron's
    `copy_to_tensor_model_parallel_region` sums it); `weight` [v, h]; `targets` [n] int64.
    """
    return _TokenLogProbs.apply(hidden, weight, targets, vocab, temperature, chunk)


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, vocab: VocabSlice, temperature: float, chunk: int) -> Tensor:
        largest, total, target = _partial_sums(hidden, weight, targets, vocab, temperature, chunk)
        if vocab.group is not None:
            largest, total, target = _merge(largest, total, target, vocab.group)
        normaliser = largest + total.log()
        ctx.save_for_backward(hidden, weight, targets, normaliser)
        ctx.settings = (vocab, temperature, chunk)
        return target - normaliser

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser = ctx.saved_tensors
        vocab, temperature, chunk = ctx.settings
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for rows in _chunks(len(targets), chunk):
            # d log p / d logits = (one-hot - softmax) / temperature
            share = _logits(hidden[rows], weight, vocab, temperature).sub_(normaliser[rows, None]).exp_().neg_()
            is_mine, local = _find(targets[rows], vocab, share.size(1))
            share.scatter_add_(1, local[:, None], is_mine[:, None].float())
            share = share.mul_(grad[rows, None] / temperature).to(hidden.dtype)
            grad_hidden[rows] = share @ weight
            grad_weight += share.T @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None


def _chunks(num: int, chunk: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk, num)) for start in range(0, num, chunk))


def _logits(hidden: Tensor, weight: Tensor, vocab: VocabSlice, temperature: float) -> Tensor:
    """[c, v] float32, padded vocabulary at minus infinity, after temperature."""
    logits = (hidden @ weight.T).float()
    if temperature != 1.0:
        logits = logits.div_(temperature)
    if vocab.num_valid < logits.size(1):
        logits[:, vocab.num_valid :] = -torch.inf
    return logits


def _find(targets: Tensor, vocab: VocabSlice, num_rows: int) -> tuple[Tensor, Tensor]:
    """Whether each target is in this rank's slice, and its column there (any column if it is not)."""
    local = targets - vocab.first
    is_mine = (local >= 0) & (local < vocab.num_valid)
    return is_mine, local.clamp(0, num_rows - 1)


def _partial_sums(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab: VocabSlice, temperature: float, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of this rank's slice, [n] float32 each: the largest logit, the sum of exp(logit - largest), the target's logit or 0."""
    largest, total, target = hidden.new_empty(3, len(targets), dtype=torch.float32)
    for rows in _chunks(len(targets), chunk):
        logits = _logits(hidden[rows], weight, vocab, temperature)
        is_mine, local = _find(targets[rows], vocab, logits.size(1))
        target[rows] = torch.where(is_mine, logits.gather(1, local[:, None])[:, 0], 0.0)
        # A slice that is all padding has no largest logit; any finite number keeps its sum at zero.
        largest[rows] = logits.amax(1).clamp(min=torch.finfo(torch.float32).min)
        total[rows] = logits.sub_(largest[rows, None]).exp_().sum(1)
    return largest, total, target


def _merge(largest: Tensor, total: Tensor, target: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """The three sums over the whole vocabulary: one MAX and one SUM of [n] and [2, n]."""
    overall = largest.clone()
    dist.all_reduce(overall, dist.ReduceOp.MAX, group)
    sums = torch.stack([total * (largest - overall).exp(), target])
    dist.all_reduce(sums, group=group)
    return overall, sums[0], sums[1]
