"""Attention over a packed row, in which the responses of a group may share one copy of their prompt.

A row is cut into blocks. A block is `num` stretches of `length` tokens each, end to end; a stretch attends to itself
causally and, if the block names a prompt, to all of that prompt first. So one batched call of scaled-dot-product attention
serves all stretches of equal length, without padding and without gathering: the row is laid out for it (`packed_rows`).
With many different lengths it becomes one call per response, which was also the fastest way for long responses.

Legend of shapes: T tokens of the row, B stretches of a block, L tokens of a stretch, P prompt tokens, H heads of this
tensor-parallel rank, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

Heads = tuple[Tensor, Tensor, Tensor]  # query [B, H, L, D], key and value [B, K, L, D]


@dataclass(frozen=True)
class Block:
    """`num` stretches of `length` tokens; `prompt` is the index of the block that holds their shared prompt."""

    num: int
    length: int
    prompt: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.num * self.length


@dataclass(eq=False)
class Packing(PackedSeqParams):
    """How a row is read. Travels through Megatron as its `packed_seq_params`; the `qkv_format` of its own keeps Megatron's
    code for packed sequences, a Python loop per document and layer, out of the way."""

    qkv_format: str = "shared_prompt"
    blocks: tuple[Block, ...] = ()
    positions: Tensor | None = None  # [T] int64, counted on from the prompt
    source_rows: Tensor | None = None  # [n] int64, the row that predicts each response token
    targets: Tensor | None = None  # [n] int64, the response tokens
    temperature: float = 1.0  # log-probs are of softmax(logits / temperature)
    cached_rope: Tensor | None = field(default=None, repr=False)
    cached_masks: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def mask(self, prompt_length: int, length: int, device: torch.device) -> Tensor:
        """[L, P + L] bool, True where a response token may look: all of the prompt and its own past."""
        key = (prompt_length, length)
        if key not in self.cached_masks:
            allowed = torch.ones(length, prompt_length + length, dtype=torch.bool, device=device)
            self.cached_masks[key] = allowed.tril(prompt_length)
        return self.cached_masks[key]


class PackedRotary(RotaryEmbedding):
    """Megatron's rotary embedding, looked up by position instead of assuming that the row is one sequence."""

    def get_rotary_seq_len(self, *args: Any, **kwargs: Any) -> Packing:
        """Megatron hands over what this returns; the packing is all that is needed."""
        return next(value for value in (*args, *kwargs.values()) if isinstance(value, Packing))

    def forward(self, packing: Packing, *args: Any, **kwargs: Any) -> Tensor:
        """Angles [T, 1, 1, D] of the row, computed once per micro-batch."""
        assert packing.positions is not None, "a packing to run the model on has positions"
        if packing.cached_rope is None:
            angles = self.get_emb(int(packing.positions.max()) + 1)
            packing.cached_rope = angles[packing.positions]
        return packing.cached_rope


class PackedAttention(torch.nn.Module):
    """Megatron's core attention for a `Packing`: no parameters, no dropout, no context parallelism."""

    def __init__(self, config: Any, layer_number: int, *args: Any, softmax_scale: float | None = None, **kwargs: Any) -> None:
        super().__init__()
        assert config.context_parallel_size == 1, "packed attention would silently ignore context parallelism"
        assert config.attention_dropout == 0, "packed attention has no dropout"
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Packing | None = None,
    ) -> Tensor:
        """query [T, 1, H, D], key and value [T, 1, K, D] to [T, 1, H * D]."""
        assert isinstance(packed_seq_params, Packing), "the policy's model reads packed rows only"
        blocks = packed_seq_params.blocks
        parts: list[Heads] = []
        outputs = []
        for block, heads in zip(blocks, _cut(blocks, query, key, value), strict=True):
            parts.append(heads)
            prompt = None if block.prompt is None else parts[block.prompt]
            outputs.append(self._attend(packed_seq_params, heads, prompt).transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).flatten(1)[:, None]

    def _attend(self, packing: Packing, heads: Heads, prompt: Heads | None) -> Tensor:
        """One block: [B, H, L, D]."""
        query, key, value = heads
        if prompt is None:
            return self._sdpa(query, key, value, None)
        num, length = query.size(0), query.size(2)
        mask = packing.mask(prompt[1].size(2), length, query.device)
        key = torch.cat([prompt[1].expand(num, -1, -1, -1), key], dim=2)
        value = torch.cat([prompt[2].expand(num, -1, -1, -1), value], dim=2)
        return self._sdpa(query, key, value, mask)

    def _sdpa(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if query.dtype == torch.bfloat16 and query.device.type == "cpu":  # its backward is four times slower in bf16
            return self._sdpa(query.float(), key.float(), value.float(), mask).to(query.dtype)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=query.size(1) != key.size(1),
        )


def _cut(blocks: tuple[Block, ...], *tensors: Tensor) -> Iterator[Heads]:
    """Per block the views [B, heads, L, D] of query, key and value. One split, whose backward is one concatenation."""
    sizes = [block.num_tokens for block in blocks]
    for block, *parts in zip(blocks, *(tensor.squeeze(1).split(sizes) for tensor in tensors), strict=True):
        query, key, value = (part.unflatten(0, (block.num, block.length)).transpose(1, 2) for part in parts)
        yield query, key, value
