"""Compute attention over a packed row by torch's own function, with one call per block.

The keys that a block's segments attend to are put in front of their own keys.

Legend: T tokens of the row, B segments of a block, L their length, P keys in front, C rows of the context, H heads, K
key-value heads, D head size.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_brorl.policy.rows.packed_rows import Block, Context, Packing, Span


def attend_by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context | None,
    packing: Packing,
    scale: float,
) -> Tensor:
    """Return the attention output [T, H, D] of a packed row of T tokens, block by block, for H heads of size D.

    `query` is [T, H, D], `key` and `value` are [T, K, D] with K key-value heads. `packing` says which tokens attend to
    which. `context` has the C keys and values, [C, K, D] each, gathered from all context-parallel ranks. It is None
    where none are gathered and tokens attend only within the row.
    """
    if context is None:
        context = (key, value)
    sizes = [block.num_tokens for block in packing.blocks]
    # One split of each tensor has a single concatenation as its backward.
    queries = query.split(sizes)
    keys = key.split(sizes)
    values = value.split(sizes)
    outputs = []
    for index, block in enumerate(packing.blocks):
        own_query = _segments(queries[index], block)
        own_key = _segments(keys[index], block)
        own_value = _segments(values[index], block)
        output = _attend(block, own_query, own_key, own_value, context, packing, scale)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _segments(heads: Tensor, block: Block) -> Tensor:
    """Return queries, keys or values [B * L, H, D] of B segments of L tokens as a batch [B, H, L, D]."""
    by_segment = heads.unflatten(0, (block.num, block.length))
    return by_segment.transpose(1, 2)


def _attend(
    block: Block,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context,
    packing: Packing,
    scale: float,
) -> Tensor:
    """Return the attention output [B, H, L, D] of one block of a packed row.

    The block is B segments of L tokens. H heads have size D.
    """
    is_grouped = query.size(1) != key.size(1)
    attend = partial(F.scaled_dot_product_attention, scale=scale, enable_gqa=is_grouped)
    if not block.sees:
        return attend(query, key, value, is_causal=True)
    context_key, context_value = context
    seen_keys = [_span(context_key, span, block.num) for span in block.sees]
    seen_values = [_span(context_value, span, block.num) for span in block.sees]
    key = torch.cat([*seen_keys, key], dim=2)
    value = torch.cat([*seen_values, value], dim=2)
    num_before = key.size(2) - block.length
    mask = _mask(packing, num_before, block.length, query.device)
    return attend(query, key, value, attn_mask=mask)


def _span(heads: Tensor, span: Span, num: int) -> Tensor:
    """Return the P keys or values from [C, K, D] that each of B segments attends to, as a batch [B, K, P, D]."""
    if span.stride == 0:
        end = span.start + span.length
        seen_by_all = heads[span.start : end].transpose(0, 1)
        return seen_by_all.expand(num, -1, -1, -1)
    end = span.start + num * span.stride
    rows = heads[span.start : end]
    by_segment = rows.unflatten(0, (num, span.stride))
    seen_by_each = by_segment[:, : span.length]
    return seen_by_each.transpose(1, 2)


def _mask(
    packing: Packing,
    num_before: int,
    length: int,
    device: torch.device,
) -> Tensor:
    """Return the attention mask [L, P + L] of a segment of L tokens that attends to P keys in front of it.

    The mask is True for all P keys in front, and for a token's own past and itself.
    """
    key = (num_before, length)
    if key not in packing.caches:
        num_keys = num_before + length
        allowed = torch.ones(length, num_keys, dtype=torch.bool, device=device)
        packing.caches[key] = allowed.tril(num_before)
    return packing.caches[key]
