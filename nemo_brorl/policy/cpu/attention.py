"""Compute attention by blocks on CPU, around torch's flash kernel, with a hand-written forward and backward.

The softmax over several sets of keys is the merge of the softmaxes over each set, weighted by their log-sum-exps
(Milakov and Gimelshein, arXiv 1805.02867). The backward of one set needs only the merged output and log-sum-exp. So all
responses of a prompt are one batch of queries against one copy of its keys, however long each response is. Responses
that share more are one batch for every level of their tree. Only the causal part is computed per length. Compared with
copying the prompt's keys to each response, this saves the copies and the sums of their gradients.

Legend: T tokens of the row, B segments of a block, L their length, R queries that see a span, P keys of a span, H
heads, K key-value heads, G = H / K, D head size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_brorl.policy.adapters.torch_adapter import flash_on_cpu, flash_on_cpu_backward
from nemo_brorl.policy.rows.packed_rows import Block, Context, Packing, Span

SpanRows = tuple[slice, Span]


def attend_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context | None,
    packing: Packing,
    scale: float,
) -> Tensor:
    """Return the attention output [T, H, D] of a packed row of T tokens, on CPU, for H heads of size D.

    `query` is [T, H, D], `key` and `value` are [T, K, D] with K key-value heads. `packing` says which tokens attend to
    which. `context` has the C keys and values, [C, K, D] each, gathered from all context-parallel ranks. It is None
    where none are gathered and tokens attend only within the row. Torch's kernel has a backward that is four times
    slower in bf16 than in fp32, so bf16 is computed in fp32.
    """
    if "cpu" not in packing.caches:
        packing.caches["cpu"] = _plan(packing)
    plan = packing.caches["cpu"]
    keys = None
    values = None
    if context is not None:
        keys = context[0].float()
        values = context[1].float()
    output = _CpuAttention.apply(
        query.float(),
        key.float(),
        value.float(),
        keys,
        values,
        plan,
        scale,
    )
    return output.to(query.dtype)


@dataclass(frozen=True)
class _CpuPlan:
    """The attention calls for one packed row: its blocks, sorted by how they are computed."""

    blocks: tuple[Block, ...]
    shared: list[SpanRows]  # rows whose queries all attend to one span
    past: list[tuple[slice, Block, Span]]  # blocks whose segments each attend to their own span


def _plan(packing: Packing) -> _CpuPlan:
    levels: defaultdict[int, list[SpanRows]] = defaultdict(list)  # spans by depth in the tree: prompts are level 0
    past: list[tuple[slice, Block, Span]] = []
    start = 0
    for block in packing.blocks:
        rows = slice(start, start + block.num_tokens)
        for level, span in enumerate(block.sees):
            if span.stride:
                past.append((rows, block, span))
            else:
                levels[level].append((rows, span))
        start = rows.stop
    shared: list[SpanRows] = []
    for level in sorted(levels):
        shared += _merged(levels[level])
    return _CpuPlan(packing.blocks, shared, past)


def _merged(shared: Sequence[SpanRows]) -> list[SpanRows]:
    """Join adjacent ranges of query rows that attend to the same range of keys into one attention call."""
    merged: list[SpanRows] = []
    for rows, span in shared:
        if merged:
            last_rows, last_span = merged[-1]
            # All responses of a prompt are one call, however many lengths they have.
            if last_rows.stop == rows.start and last_span == span:
                joined = slice(last_rows.start, rows.stop)
                merged[-1] = (joined, span)
                continue
        merged.append((rows, span))
    return merged


class _CpuAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor | None,
        values: Tensor | None,
        plan: _CpuPlan,
        scale: float,
    ) -> Tensor:
        output = torch.empty_like(query)
        log_sums = query.new_empty(query.shape[:2])
        for *heads, to_output, to_sums in _by_block(plan, query, key, value, output, log_sums):
            part, part_sums = flash_on_cpu(*heads, 0.0, True, scale=scale)
            to_output.copy_(part)
            to_sums.copy_(part_sums)
        # The output has the causal part. Attention over each further set of keys is merged into it.
        context = (key, value) if keys is None or values is None else (keys, values)
        num_heads = query.size(1)
        num_kv = key.size(1)
        for rows, span in plan.shared:
            seen = [_span(part, span, num_heads) for part in context]
            queries = _queries(query, rows, num_kv)
            part, part_sums = flash_on_cpu(queries, *seen, 0.0, False, scale=scale)
            to_output = _queries(output, rows, num_kv)
            to_sums = _queries(log_sums, rows, num_kv)
            _merge(to_output, to_sums, part, part_sums)
        for rows, block, span in plan.past:
            seen = [_spans(part, span, block) for part in context]
            queries = _segments(query, rows, block)
            part, part_sums = flash_on_cpu(queries, *seen, 0.0, False, scale=scale)
            to_output = _segments(output, rows, block)
            to_sums = _segments(log_sums, rows, block)
            _merge(to_output, to_sums, part, part_sums)
        ctx.save_for_backward(query, key, value, keys, values, output, log_sums)
        ctx.settings = (plan, scale)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keys, values, output, log_sums = ctx.saved_tensors
        plan, scale = ctx.settings
        grad = grad.contiguous()
        # The causal part's gradients fill it block by block. Gradients over the spans are added to them.
        query_grad = torch.empty_like(query)
        own_grads = (torch.empty_like(key), torch.empty_like(value))
        inputs = (grad, query, key, value, output, log_sums)
        for *whole, to_query, to_key, to_value in _by_block(plan, *inputs, query_grad, *own_grads):
            parts = flash_on_cpu_backward(*whole, 0.0, True, scale=scale)
            to_query.copy_(parts[0])
            to_key.copy_(parts[1])
            to_value.copy_(parts[2])
        is_own = keys is None
        context = (key, value)
        context_grads = own_grads
        if not is_own:
            context = (keys, values)
            context_grads = (torch.zeros_like(keys), torch.zeros_like(values))
        num_heads = query.size(1)
        num_kv = key.size(1)
        whole_row = _Backward(grad, query, output, log_sums, query_grad)
        for rows, span in plan.shared:
            seen = [_span(part, span, num_heads) for part in context]
            views = [_queries(part, rows, num_kv) for part in whole_row]
            seen_grads = _backward_of_seen(views, seen, scale)
            for total, part in zip(context_grads, seen_grads, strict=True):
                end = span.start + span.length
                rows_of_span = total[span.start : end]
                # Query heads of a group share their keys, so the keys' gradient is the sum over the group.
                rows_of_span.transpose(0, 1).add_(part.sum(0))
        for rows, block, span in plan.past:
            seen = [_spans(part, span, block) for part in context]
            views = [_segments(part, rows, block) for part in whole_row]
            seen_grads = _backward_of_seen(views, seen, scale)
            for total, part in zip(context_grads, seen_grads, strict=True):
                _spans(total, span, block).add_(part)
        gathered_grads = (None, None) if is_own else context_grads
        return (query_grad, *own_grads, *gathered_grads, None, None)


class _Backward(NamedTuple):
    """Queries, with their gradients, that the attention's backward pass over one span of keys reads and writes."""

    grad: Tensor
    query: Tensor
    output: Tensor
    log_sums: Tensor
    query_grad: Tensor  # gradient that the pass adds to


def _backward_of_seen(
    views: Sequence[Tensor],
    seen: Sequence[Tensor],
    scale: float,
) -> Sequence[Tensor]:
    """Return the attention gradients of keys and values that all given queries attend to without a mask.

    `views` are views of the tensors in a `_Backward`. The gradient of the queries is added to its `query_grad` in
    place.
    """
    grad, query, output, log_sums, query_grad = views
    parts = flash_on_cpu_backward(grad, query, *seen, output, log_sums, 0.0, False, scale=scale)
    query_grad.add_(parts[0])
    return parts[1:]


def _by_block(plan: _CpuPlan, *tensors: Tensor) -> Iterator[list[Tensor]]:
    """Yield views [B, H, L, ...] of attention tensors [T, H, ...] for each block of a packed row.

    A block is B segments of L tokens. H is the number of heads. Each tensor is split once, because there are many
    blocks.
    """
    sizes = [block.num_tokens for block in plan.blocks]
    split = [tensor.split(sizes) for tensor in tensors]
    for index, block in enumerate(plan.blocks):
        views = []
        for parts in split:
            part = parts[index]
            by_segment = part.view(block.num, block.length, *part.shape[1:])
            views.append(by_segment.transpose(1, 2))
        yield views


def _segments(heads: Tensor, rows: slice, block: Block) -> Tensor:
    """Return one block of an attention tensor [T, H, ...] as a view [B, H, L, ...], for its B segments of L tokens."""
    sizes = (block.num, block.length)
    by_segment = heads[rows].unflatten(0, sizes)
    return by_segment.transpose(1, 2)


def _queries(heads: Tensor, rows: slice, num_kv: int) -> Tensor:
    """Return R query rows of an attention tensor [T, H, ...] as a view [G, K, R, ...], for K key-value heads.

    The G query heads that share a key-value head become the batch dimension.
    """
    by_group = heads[rows].unflatten(1, (num_kv, -1))
    return by_group.transpose(0, 2)


def _span(heads: Tensor, span: Span, num_heads: int) -> Tensor:
    """Return P adjacent keys or values from [C, K, D] as a view [G, K, P, D], for K key-value heads.

    The view repeats them for the G query heads that share a key-value head.
    """
    end = span.start + span.length
    part = heads[span.start : end]
    group_size = num_heads // part.size(1)
    part = part.transpose(0, 1)
    return part.expand(group_size, -1, -1, -1)


def _spans(heads: Tensor, span: Span, block: Block) -> Tensor:
    """Return the P keys or values from [C, K, D] that each of B segments attends to, as a view [B, K, P, D]."""
    end = span.start + block.num * span.stride
    part = heads[span.start : end]
    by_segment = part.unflatten(0, (block.num, span.stride))
    return by_segment[:, : span.length].transpose(1, 2)


def _merge(
    output: Tensor,
    log_sums: Tensor,
    part: Tensor,
    part_sums: Tensor,
) -> None:
    """Merge attention over more keys (`part`, log-sum-exps `part_sums`) into `output` and `log_sums` in place."""
    weight = (part_sums - log_sums).sigmoid_()
    output.lerp_(part, weight[..., None])
    torch.logaddexp(log_sums, part_sums, out=log_sums)
