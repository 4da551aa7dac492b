"""Compute attention over a packed row by variable-length flash kernels, with a hand-written forward and backward.

The first call is causal: every segment of the row attends to itself. Then each level of what segments also attend to
(their prompt, what else they share, under context parallelism their own past) is one more call, not causal. In it, rows
of queries and a span of keys form a sequence. The softmax over several sets of keys is the merge of the softmaxes over
each set, weighted by their log-sum-exps (Milakov and Gimelshein, arXiv 1805.02867). The backward of one set needs only
the merged output and log-sum-exp. No mask is built, and a row of plain documents is one call.

Legend: T tokens of the row, R queries and C keys of a call, n sequences, H heads, K key-value heads, D head size.

A kernel takes many sequences that lie end to end. `Kernel` is the interface of all such kernels, `FlashKernel` is
torch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import attention

from nemo_brorl.policy.adapters.torch_adapter import flash_on_gpu, flash_on_gpu_backward
from nemo_brorl.policy.process.device import compiled, fix_sizes
from nemo_brorl.policy.rows.packed_rows import Block, Context, Packing, Span

# Most queries of one sequence. The backward kernel gives a block of keys to one program, which walks over all of their
# queries. With longer sequences the few blocks of a shared prompt would occupy only a few of the GPU's processors.
_QUERIES = 4096


@dataclass(frozen=True)
class AttentionSequences:
    """Sequences of queries and keys that lie end to end. Tokens attend only within their sequence."""

    query_ends: Tensor  # [n + 1] int32: 0, then the end of each sequence
    key_ends: Tensor  # [n + 1] int32: 0, then the end of each sequence
    longest_query: int
    longest_key: int
    is_causal: bool


class Kernel(Protocol):
    """An attention kernel for n sequences.

    Queries are [R, H, D], keys and values [C, K, D], log-sum-exps [H, R] float32.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: AttentionSequences,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention output [R, H, D] of R queries and the log-sum-exps [H, R] of their softmax."""

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sums: Tensor,
        sequences: AttentionSequences,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value from the gradient of the attention output.

        `output` and `log_sums` may come from attention over more keys than `key` has.
        """


class FlashKernel:
    """Torch's own flash attention for bf16 on CUDA (arXiv 2307.08691).

    After `use_newest_kernel` it may be FlashAttention 3.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: AttentionSequences,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention output [R, H, D] of R queries and the log-sum-exps [H, R] of their softmax."""
        output, log_sums, *_ = flash_on_gpu(
            query,
            key,
            value,
            sequences.query_ends,
            sequences.key_ends,
            sequences.longest_query,
            sequences.longest_key,
            0.0,
            sequences.is_causal,
            False,
            scale=scale,
        )
        return output, log_sums

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sums: Tensor,
        sequences: AttentionSequences,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value from the gradient of the attention output."""
        # The kernel needs a random state for dropout, which is not used.
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
        unused = torch.empty(0, device=query.device)
        return flash_on_gpu_backward(
            grad,
            query,
            key,
            value,
            output,
            log_sums,
            sequences.query_ends,
            sequences.key_ends,
            sequences.longest_query,
            sequences.longest_key,
            0.0,
            sequences.is_causal,
            no_dropout,
            unused,
            scale=scale,
        )


def use_newest_kernel() -> str:
    """Make torch use FlashAttention 3 (arXiv 2407.08608) if possible, and return the name of the kernel in use.

    It needs the module `flash_attn_interface` and a Hopper GPU.
    """
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    if is_hopper and find_spec("flash_attn_interface"):
        attention.activate_flash_attention_impl("FA3")
        return "FlashAttention 3"
    return "FlashAttention 2"


_FLASH = FlashKernel()


def attend_with_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context | None,
    packing: Packing,
    scale: float,
    kernel: Kernel = _FLASH,
) -> Tensor:
    """Return the attention output [T, H, D] of a packed row of T tokens, by flash attention, for H heads of size D.

    `query` is [T, H, D], `key` and `value` are [T, K, D] with K key-value heads. `packing` says which tokens attend to
    which. `context` has the C keys and values, [C, K, D] each, gathered from all context-parallel ranks. It is None
    where none are gathered and tokens attend only within the row.
    """
    if "flash" not in packing.caches:
        packing.caches["flash"] = _plan(packing.blocks, query.device)
    plan = packing.caches["flash"]
    seen_key, seen_value = (None, None) if context is None else context
    return _FlashAttention.apply(
        query,
        key,
        value,
        seen_key,
        seen_value,
        plan,
        scale,
        kernel,
    )


class _Pair(NamedTuple):
    """Rows of queries, and rows of the context that all of them attend to."""

    rows: slice
    keys: slice


class _Look(NamedTuple):
    """One attention call, not causal, on keys of the context."""

    runs: tuple[slice, ...]  # contiguous rows of queries
    spans: tuple[slice, ...]  # rows of the context, one span per sequence
    sequences: AttentionSequences


class _FlashPlan(NamedTuple):
    """The attention calls for one packed row."""

    own: AttentionSequences  # the causal call: every segment attends to itself
    looks: tuple[_Look, ...]


def _plan(blocks: Sequence[Block], device: torch.device) -> _FlashPlan:
    lengths: list[int] = []
    for block in blocks:
        lengths += [block.length] * block.num
    own = _sequences(lengths, lengths, device, is_causal=True)
    looks = []
    # A query can be in only one sequence of a call, so each level that a block attends to is a call of its own.
    num_looks = max(len(block.sees) for block in blocks)
    for number in range(num_looks):
        pairs = list(_pairs(blocks, number))
        runs = _joined([pair.rows for pair in pairs])
        spans = tuple(pair.keys for pair in pairs)
        query_lengths = [_length(pair.rows) for pair in pairs]
        key_lengths = [_length(pair.keys) for pair in pairs]
        sequences = _sequences(query_lengths, key_lengths, device, is_causal=False)
        looks.append(_Look(runs, spans, sequences))
    return _FlashPlan(own, tuple(looks))


def _length(rows: slice) -> int:
    return rows.stop - rows.start


def _sequences(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    device: torch.device,
    is_causal: bool,
) -> AttentionSequences:
    return AttentionSequences(
        _ends(query_lengths, device),
        _ends(key_lengths, device),
        max(query_lengths),
        max(key_lengths),
        is_causal,
    )


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return ends.to(device, torch.int32)


def _pairs(blocks: Sequence[Block], number: int) -> Iterator[_Pair]:
    """Yield pairs of query rows and keys that they attend to as a whole, one range of keys per block of a packed row.

    `number` is the index of the key range among those of a block. Neighbouring rows that attend to the same keys are
    one pair, cut into sequences of at most `_QUERIES` rows.
    """
    pairs: list[_Pair] = []
    start = 0
    for block in blocks:
        if number < len(block.sees):
            for pair in _pairs_of_block(start, block, block.sees[number]):
                _append(pairs, pair)
        start += block.num_tokens
    for rows, keys in pairs:
        for first in range(rows.start, rows.stop, _QUERIES):
            last = min(first + _QUERIES, rows.stop)
            yield _Pair(slice(first, last), keys)


def _append(pairs: list[_Pair], pair: _Pair) -> None:
    """Append a pair of query rows and keys, or extend the last pair if it has the same keys and adjacent rows."""
    # Joined neighbours load their common keys only once.
    if pairs and pairs[-1].keys == pair.keys and pairs[-1].rows.stop == pair.rows.start:
        before = pairs.pop()
        pair = _Pair(slice(before.rows.start, pair.rows.stop), pair.keys)
    pairs.append(pair)


def _pairs_of_block(start: int, block: Block, span: Span) -> Iterator[_Pair]:
    """Yield pairs of the query rows in a block of a packed row and the keys that they attend to as a whole.

    There is one pair if all segments of the block attend to the same keys, else one per segment. `start` is the block's
    first row.
    """
    if span.stride == 0:
        yield _Pair(slice(start, start + block.num_tokens), slice(span.start, span.start + span.length))
        return
    for segment in range(block.num):
        first = start + segment * block.length
        first_key = span.start + segment * span.stride
        yield _Pair(slice(first, first + block.length), slice(first_key, first_key + span.length))


def _joined(parts: Sequence[slice]) -> tuple[slice, ...]:
    """Return slices of tensor rows in the given order, each joined to the previous one if that ends where it begins."""
    runs: list[slice] = []
    for part in parts:
        if runs and runs[-1].stop == part.start:
            part = slice(runs.pop().start, part.stop)
        runs.append(part)
    return tuple(runs)


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen_key: Tensor | None,
        seen_value: Tensor | None,
        plan: _FlashPlan,
        scale: float,
        kernel: Kernel,
    ) -> Tensor:
        output, log_sums = kernel.forward(query, key, value, plan.own, scale)
        context = (key, value) if seen_key is None or seen_value is None else (seen_key, seen_value)
        for look in plan.looks:
            queries = _rows(query, look.runs)
            keys, values = [_rows(part, look.spans) for part in context]
            part, part_sums = kernel.forward(queries, keys, values, look.sequences, scale)
            # The output has the causal part already. The log-sum-exps say how much of it remains.
            _merge(output, log_sums, part, part_sums, look.runs)
        ctx.save_for_backward(query, key, value, seen_key, seen_value, output, log_sums)
        ctx.settings = (plan, scale, kernel)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, seen_key, seen_value, output, log_sums = ctx.saved_tensors
        plan, scale, kernel = ctx.settings
        grad = grad.contiguous()
        query_grad, *own_grads = kernel.backward(grad, query, key, value, output, log_sums, plan.own, scale)
        is_own = seen_key is None
        context = (key, value) if is_own else (seen_key, seen_value)
        # Sums are float32, because the keys of a prompt get a gradient from every sequence that attends to them.
        totals = [part.float() for part in own_grads] if is_own else [_zeros(part) for part in context]
        for look in plan.looks:
            keys, values = [_rows(part, look.spans) for part in context]
            of_queries = [_rows(part, look.runs) for part in (grad, query, output)]
            # With the log-sum-exps over all keys, not only these, the kernel's probabilities are those of the whole
            # softmax. Then gradients over parts of the keys can simply be added.
            sums = torch.cat([log_sums[:, rows] for rows in look.runs], dim=1)
            grads, queries, outputs = of_queries
            parts = kernel.backward(grads, queries, keys, values, outputs, sums, look.sequences, scale)
            _add_rows(query_grad, parts[0], look.runs)
            for total, part in zip(totals, parts[1:], strict=True):
                _add_rows(total, part, look.spans)
        context_grads = [total.to(query.dtype) for total in totals]
        if is_own:
            return (query_grad, *context_grads, None, None, None, None, None)
        return (query_grad, *own_grads, *context_grads, None, None, None)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.float32)


def _rows(tensor: Tensor, parts: Sequence[slice]) -> Tensor:
    """Return the rows of a tensor that lie in the given slices, concatenated.

    The rows of a single slice are returned without a copy.
    """
    if len(parts) == 1:
        return tensor[parts[0]]
    return torch.cat([tensor[part] for part in parts])


def _add_rows(total: Tensor, rows: Tensor, parts: Sequence[slice]) -> None:
    """Add the gradients `rows` of concatenated slices of a tensor to these slices of the whole gradient `total`."""
    sizes = [_length(part) for part in parts]
    for part, mine in zip(parts, rows.split(sizes), strict=True):
        total[part] += mine


def _merge(
    output: Tensor,
    log_sums: Tensor,
    part: Tensor,
    part_sums: Tensor,
    runs: Sequence[slice],
) -> None:
    """Merge attention of some queries over more keys (`part`, log-sum-exps `part_sums`) into `output` and `log_sums`.

    `runs` are the rows of these queries, which are changed in place.
    """
    sizes = [_length(rows) for rows in runs]
    for rows, more, more_sums in zip(runs, part.split(sizes), part_sums.split(sizes, dim=1), strict=True):
        output[rows], log_sums[:, rows] = _merged(output[rows], log_sums[:, rows], more, more_sums)


def _merged(
    output: Tensor,
    log_sums: Tensor,
    part: Tensor,
    part_sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exps of one attention over two sets of keys, from those of attention over each set.

    On a GPU one compiled kernel computes them.
    """
    if not output.is_cuda:
        return merged(output, log_sums, part, part_sums)
    merge = compiled(merged)
    return merge(
        fix_sizes(output, 1, 2),
        fix_sizes(log_sums, 0),
        fix_sizes(part, 1, 2),
        fix_sizes(part_sums, 0),
    )


def merged(
    output: Tensor,
    log_sums: Tensor,
    part: Tensor,
    part_sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return output [R, H, D] and log-sum-exps [H, R] of one attention over two sets of keys, from those over each set.

    There are R queries and H heads of size D.
    """
    weight = (part_sums - log_sums).sigmoid().T[..., None]
    total = output.float().lerp(part.float(), weight)
    return total.to(output.dtype), torch.logaddexp(log_sums, part_sums)
