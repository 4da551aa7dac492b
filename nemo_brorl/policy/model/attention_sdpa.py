"""Block attention by torch's scaled-dot-product attention alone, on any device: one call per block, the keys of what
its stretches see in front of their own.

Legend: B stretches of a block, L their length, P keys in front, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_brorl.policy.rows.row_layout import Block, Packing, Span


def attend_by_blocks(
    query: Tensor, key: Tensor, value: Tensor, context: tuple[Tensor, Tensor] | None, packing: Packing, scale: float
) -> Tensor:
    """query [T, H, D], key and value [T, K, D], context (key, value) [C, K, D] or None where it is the row itself; [T,
    H, D]."""
    blocks, context = packing.blocks, context if context is not None else (key, value)
    sizes = [block.num_tokens for block in blocks]
    outputs = []
    # one split, whose backward is one concatenation
    for block, *parts in zip(blocks, *(heads.split(sizes) for heads in (query, key, value)), strict=True):
        own = [part.unflatten(0, (block.num, block.length)).transpose(1, 2) for part in parts]
        outputs.append(_attend(block, own, context, packing, scale).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend(block: Block, own: list[Tensor], context: tuple[Tensor, Tensor], packing: Packing, scale: float) -> Tensor:
    """One block: [B, H, L, D]."""
    query, key, value = own
    is_grouped = query.size(1) != key.size(1)
    if not block.sees:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=is_grouped)
    key, value = (
        torch.cat([*(_span(part, span, block.num) for span in block.sees), last], dim=2)
        for part, last in zip(context, (key, value), strict=True)
    )
    mask = _mask(packing, key.size(2) - block.length, block.length, query.device)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=is_grouped)


def _span(heads: Tensor, span: Span, num: int) -> Tensor:
    """[C, K, D] to [B, K, P, D]."""
    if span.stride:
        part = heads[span.start : span.start + num * span.stride].unflatten(0, (num, span.stride))[:, : span.length]
        return part.transpose(1, 2)
    return heads[span.start : span.start + span.length].transpose(0, 1).expand(num, -1, -1, -1)


def _mask(packing: Packing, num_before: int, length: int, device: torch.device) -> Tensor:
    """[L, P + L] bool, True where a token may look: all that is in front, and its own past."""
    key = (num_before, length)
    if key not in packing.caches:
        allowed = torch.ones(length, num_before + length, dtype=torch.bool, device=device)
        packing.caches[key] = allowed.tril(num_before)
    return packing.caches[key]
