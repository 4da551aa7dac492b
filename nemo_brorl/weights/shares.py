"""How ranks share the Hugging Face tensors of a Megatron parameter, on any parallel layout.

Every rank holds an equal share of each of a slot's Hugging Face tensors, so a share is a plain slice of the file.
Layouts that differ from a simple slice:

    linear_qkv   per query group its query heads, then its key head, then its value head; ranks split the groups
    linear_fc1   per rank the gate rows, then the up rows
    embedding, output layer   padded with zero rows to a multiple of the ranks

Under expert parallelism an expert is whole; otherwise tensor-parallel ranks share it like a dense MLP.
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
    """The ranks between which a model is split, as its owner has them."""

    tensor: dist.ProcessGroup  # share a parameter outside the experts
    expert_tensor: dist.ProcessGroup  # share a parameter of an expert
    experts: dist.ProcessGroup  # hold consecutive experts
    pipeline: dist.ProcessGroup  # hold consecutive layers

    def splitting(self, slot: Slot) -> dist.ProcessGroup:
        """Return the ranks that share one parameter."""
        return self.expert_tensor if slot.is_expert else self.tensor


def share_of(
    kind: str,
    size: Sequence[int],
    ranks: int,
    rank: int,
) -> tuple[slice, ...]:
    """Say where the share of one of the ranks that split a slot lies in one of its Hugging Face tensors of this size.

    Under `vocab` the last shares may be short or empty: the rest is padding.
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


def _split_dim(kind: str) -> int:
    """Return the dimension of a Hugging Face tensor along which ranks split it."""
    return 1 if kind == "rows_of_input" else 0


def views(
    kind: str,
    local: Tensor,
    shape: ModelShape,
) -> list[Tensor]:
    """Return one rank's Megatron tensor as a view per Hugging Face tensor: its share, with heads of a query group on
    their own axis."""
    if kind == "gate_up":
        return list(local.chunk(2))
    if kind != "qkv":
        return [local]
    num_query = shape.num_heads // shape.num_key_value_heads
    group = (-1, num_query + 2, shape.head_size)
    grouped = local.unflatten(0, group)  # [groups, heads of a group, D, ...]
    return list(grouped.split([num_query, 1, 1], dim=1))


def pack(
    kind: str,
    shares: Sequence[Tensor],
    local: Tensor,
    shape: ModelShape,
) -> None:
    """Write a rank's shares of Hugging Face tensors into its Megatron tensor; padding becomes zero."""
    if kind == "vocab":
        (share,) = shares
        local[: len(share)] = share
        local[len(share) :] = 0
        return
    local_views = views(kind, local, shape)
    for view, share in zip(local_views, shares, strict=True):
        view.copy_(share.reshape(view.shape))


def unpack(
    kind: str,
    locals_: Sequence[Tensor],
    shape: ModelShape,
) -> list[Tensor]:
    """Return the Megatron tensors of all ranks that split a slot to its Hugging Face tensors."""
    if kind == "copy":
        return [locals_[0]]
    if kind == "vocab":
        padded = torch.cat(list(locals_))
        return [padded[: shape.vocab_size]]
    views_by_rank = [views(kind, local, shape) for local in locals_]
    wholes = []
    for shares in zip(*views_by_rank, strict=True):
        # Query groups, their heads and the head size are the rows of the file.
        if kind == "qkv":
            shares = tuple(share.flatten(0, 2) for share in shares)
        wholes.append(torch.cat(shares, _split_dim(kind)))
    return wholes
