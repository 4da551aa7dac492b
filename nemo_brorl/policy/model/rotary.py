"""Rotary positions by lookup. Megatron's own take a row for one sequence, so the core attention rotates, not Megatron.

Legend: T tokens of the row, H heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor

from nemo_brorl.policy.rows.row_layout import Packing

Rotation = tuple[Tensor, Tensor]  # cosine and sine [T, 1, D / 2] float32


class PackedRotary(RotaryEmbedding):
    """Megatron's rotary embedding with its frequencies; leaves the rotation of every token on the packing."""

    def get_rotary_seq_len(self, *args: Any, **kwargs: Any) -> Packing:
        """Megatron hands over what this returns; the packing is all that is needed."""
        return next(value for value in (*args, *kwargs.values()) if isinstance(value, Packing))

    def forward(self, packing: Packing, *args: Any, **kwargs: Any) -> None:
        """Nothing for Megatron to apply; `packing.rotation` is computed once per micro-batch."""
        assert packing.positions is not None, "a packing to run the model on has positions"
        if packing.rotation is None:
            frequencies = self.inv_freq.to(packing.positions.device)
            angles = packing.positions[:, None, None] * frequencies
            packing.rotation = (angles.cos(), angles.sin())


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn pair (d, d + D / 2) of every head [T, H, D] by its token's angle."""
    cosine, sine = rotation
    return _Rotate.apply(heads, cosine.to(heads.dtype), sine.to(heads.dtype))


class _Rotate(torch.autograd.Function):
    """Two products per half instead of the six passes over memory of `x * cos + rotate_half(x) * sin`."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turn(heads, cosine, sine, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turn(grad, cosine, sine, -1.0), None, None


def _turn(heads: Tensor, cosine: Tensor, sine: Tensor, direction: float) -> Tensor:
    first, second = heads.chunk(2, -1)
    turned = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    turned_first, turned_second = turned.chunk(2, -1)
    torch.mul(first, cosine, out=turned_first).addcmul_(second, sine, value=-direction)
    torch.mul(second, cosine, out=turned_second).addcmul_(first, sine, value=direction)
    return turned
