"""Compute attention over a packed row by one FlexAttention kernel (arXiv 2412.05496).

The kernel skips empty blocks of its mask. FlexAttention has no backward on CPU. Its kernel and mask are compiled with
dynamic shapes. Rows are padded to a multiple of ROW_MULTIPLE tokens, so that rows of any length share the compiled
kernel.

Legend: T tokens of the row, S keys (context, then row), C rows of the context, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from nemo_brorl.policy.process.device import compiled
from nemo_brorl.policy.rows.packed_rows import Context, Packing, Sight

# Tokens in two of FlexAttention's blocks, because a row of a single block is compiled separately.
ROW_MULTIPLE = 256


MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attend_with_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context | None,
    packing: Packing,
    scale: float,
) -> Tensor:
    """Return the attention output [T, H, D] of a packed row of T tokens, by FlexAttention, for H heads of size D.

    `query` is [T, H, D], `key` and `value` are [T, K, D] with K key-value heads. `packing` says which tokens attend to
    which. `context` has the C keys and values, [C, K, D] each, gathered from all context-parallel ranks. It is None
    where none are gathered and tokens attend only within the row.
    """
    if context is not None:
        key = torch.cat([context[0], key])
        value = torch.cat([context[1], value])
    is_grouped = query.size(1) != key.size(1)
    mask = block_mask(packing, query.device)
    attend = _compiled(flex_attention, query.device, scale=scale, enable_gqa=is_grouped)
    output = attend(_batched(query), _batched(key), _batched(value), block_mask=mask)
    return output[0].transpose(0, 1)


def _batched(heads: Tensor) -> Tensor:
    """Return queries, keys or values [T, H, D] of one packed row as a batch of size one, [1, H, T, D]."""
    return heads.transpose(0, 1)[None]


def block_mask(packing: Packing, device: torch.device) -> BlockMask:
    """Return FlexAttention's block mask of a packed row, which is built once for all layers and passes."""
    if "flex" not in packing.caches:
        sight = packing.sight
        assert sight is not None, "the row was built for FlexAttention"
        create = _compiled(create_block_mask, device)
        num_queries = len(sight.query_segment)
        num_keys = len(sight.key_segment)
        sees = mask_mod(sight)
        packing.caches["flex"] = create(sees, None, None, num_queries, num_keys, device=str(device))
    return packing.caches["flex"]


def mask_mod(sight: Sight) -> MaskMod:
    """Return the function that tells FlexAttention whether query `q` attends to key `k`.

    A query attends to the keys of its own segment of the packed row, and of the segments that it continues, up to its
    own position.
    """
    query_segment = sight.query_segment
    query_position = sight.query_position
    key_segment = sight.key_segment
    key_last = sight.key_last
    key_position = sight.key_position

    def sees(
        batch: Tensor,
        head: Tensor,
        q: Tensor,
        k: Tensor,
    ) -> Tensor:
        is_after = key_segment[k] <= query_segment[q]
        is_in_subtree = query_segment[q] <= key_last[k]
        is_past = key_position[k] <= query_position[q]
        return is_after & is_in_subtree & is_past

    return sees


def _compiled(function: Any, device: torch.device, **constants: Any) -> Any:
    """Return a FlexAttention function compiled by torch on GPU, and uncompiled on CPU, where only tests use it.

    The uncompiled function stores the mask for all pairs of tokens.
    """
    if device.type == "cpu":
        return partial(function, **constants)
    return compiled(function, **constants)
