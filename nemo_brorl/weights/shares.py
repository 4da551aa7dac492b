"""Split Hugging Face tensors into the ranks' Megatron parameters and join them again, on any parallel layout.

Every rank holds an equal share of each of a slot's Hugging Face tensors, so a share is a plain slice of the file.
Layouts that differ from a simple slice:

    linear_qkv   per query group its query heads, then its key head, then its value head; ranks split the groups
    linear_fc1   per rank the gate rows, then the up rows, also where the file has both in one tensor
    embedding, output layer   padded with zero rows to a multiple of the ranks

Under expert parallelism a rank holds whole experts. Otherwise tensor-parallel ranks split an expert like a dense MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.weights.names import Slot


@dataclass(frozen=True)
class RankGroups:
    """Process groups of the ranks between which a model is split."""

    tensor: dist.ProcessGroup  # ranks that split a parameter outside the experts
    expert_tensor: dist.ProcessGroup  # ranks that split a parameter of an expert
    experts: dist.ProcessGroup  # ranks that hold consecutive experts
    pipeline: dist.ProcessGroup  # ranks that hold consecutive layers

    def splitting(self, slot: Slot) -> dist.ProcessGroup:
        """Return the group of ranks that split a Megatron parameter between them."""
        return self.expert_tensor if slot.is_expert else self.tensor


def share_of(
    kind: str,
    size: Sequence[int],
    ranks: int,
    rank: int,
) -> tuple[slice, ...]:
    """Return the slices of one rank's share in a Hugging Face tensor of shape `size`.

    `kind` says how ranks split the tensor (`Slot.kind`). `ranks` ranks split it, and `rank` is one of them. With the
    kind `vocab` the last shares may be short or empty, because the rest is padding.
    """
    share = [slice(0, length) for length in size]
    if kind == "copy":
        return tuple(share)
    split_dim = _split_dim(kind)
    whole = size[split_dim]
    length = -(-whole // ranks)
    start = min(rank * length, whole)
    share[split_dim] = slice(start, min(start + length, whole))
    return tuple(share)


def slices_of(kind: str, size: Sequence[int], ranks: int, rank: int) -> list[tuple[slice, ...]]:
    """Return the slices of a Hugging Face tensor whose rows, one after the other, are the share of a rank."""
    if kind != "fused_gate_up":
        return [share_of(kind, size, ranks, rank)]
    half = size[0] // 2
    rows, *others = share_of("gate_up", (half, *size[1:]), ranks, rank)
    return [(slice(first + rows.start, first + rows.stop), *others) for first in (0, half)]


def _split_dim(kind: str) -> int:
    """Return the dimension of a Hugging Face tensor along which ranks split it."""
    return 1 if kind == "rows_of_input" else 0


def views(
    kind: str,
    local: Tensor,
    shape: ModelShape,
) -> list[Tensor]:
    """Return one view of a rank's Megatron tensor per Hugging Face tensor: its share of that tensor.

    For `qkv` the heads of a query group have an axis of their own: [groups, heads of a group, head size, ...].
    """
    if kind == "gate_up":
        return list(local.chunk(2))
    if kind != "qkv":
        return [local]
    num_query = shape.num_heads // shape.num_key_value_heads
    group = (-1, num_query + 2, shape.head_size)
    grouped = local.unflatten(0, group)  # [groups, heads of a group, head size, ...]
    return list(grouped.split([num_query, 1, 1], dim=1))


def pack(
    kind: str,
    shares: Sequence[Tensor],
    local: Tensor,
    shape: ModelShape,
) -> None:
    """Write a rank's shares of Hugging Face tensors into its Megatron tensor `local`. Padding becomes zero."""
    if kind == "vocab":
        (share,) = shares
        local[: len(share)] = share
        local[len(share) :] = 0
        return
    local_views = views(kind, local, shape)
    parts = [share.reshape(view.shape) for view, share in zip(local_views, shares, strict=True)]
    if kind == "qkv" and shape.rope.is_interleaved:
        order = torch.tensor(_head_order(shape))
        parts[:2] = [part.index_select(2, order) for part in parts[:2]]
    for view, part in zip(local_views, parts, strict=True):
        view.copy_(part)


def _head_order(shape: ModelShape) -> list[int]:
    """Return which dimension of a query or key head in the file is which of the policy's, where pairs are interleaved.

    The policy rotates dimension i with i + half of the head. Dimensions that do not rotate come last in both halves.
    """
    num_rotated = shape.rope.num_rotated(shape.head_size)
    middle = (num_rotated + shape.head_size) // 2
    first = [*range(0, num_rotated, 2), *range(num_rotated, middle)]
    return [*first, *range(1, num_rotated, 2), *range(middle, shape.head_size)]


def unpack(
    kind: str,
    locals_: Sequence[Tensor],
    shape: ModelShape,
) -> list[Tensor]:
    """Return whole Hugging Face tensors, joined from the Megatron tensors of all ranks that split a parameter."""
    if kind == "copy":
        return [locals_[0]]
    if kind == "vocab":
        padded = torch.cat(list(locals_))
        return [padded[: shape.vocab_size]]
    if kind == "fused_gate_up":
        return [torch.cat(unpack("gate_up", locals_, shape))]
    views_by_rank = [views(kind, local, shape) for local in locals_]
    if kind == "qkv" and shape.rope.is_interleaved:
        place = torch.tensor(_head_order(shape), device=locals_[0].device).argsort()
        for parts in views_by_rank:
            parts[:2] = [part.index_select(2, place) for part in parts[:2]]
    wholes = []
    for shares in zip(*views_by_rank, strict=True):
        # The rows of the file are query groups × heads × head size.
        if kind == "qkv":
            shares = tuple(share.flatten(0, 2) for share in shares)
        wholes.append(torch.cat(shares, _split_dim(kind)))
    return wholes
