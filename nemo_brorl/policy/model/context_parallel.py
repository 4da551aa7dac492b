"""Keys and values of the stretches that are cut over the context-parallel ranks, gathered and put in order.

Every stretch of a cut block is padded to 2·ranks pieces of equal length; rank r holds pieces r and 2·ranks − 1 − r, so
that all ranks have the same share of causal work (`packed_rows`). Only keys and values travel, the queries stay.

Legend: t cut tokens of this rank, C = t · ranks rows of the context, K key-value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.policy.rows.row_layout import Packing


def gather_context(
    key: Tensor, value: Tensor, packing: Packing, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor] | None:
    """Keys and values [C, K, D] of all ranks' cut stretches, each stretch in its own order; None when nothing is cut,
    which all ranks find alike. One collective for both."""
    if packing.num_cut == 0:
        return None
    both = torch.stack([key[: packing.num_cut], value[: packing.num_cut]], dim=1)
    ordered = _Gather.apply(both, group).index_select(0, packing.context_order)
    return ordered[:, 0], ordered[:, 1]


class _Gather(torch.autograd.Function):
    """[t, ...] of every rank to [C, ...]; a gradient goes back to the rank it belongs to, summed over all ranks."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        whole = mine.new_empty(group.size() * mine.size(0), *mine.shape[1:])
        dist.all_gather_into_tensor(whole, mine.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        mine = grad.new_empty(grad.size(0) // ctx.group.size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(mine, grad.contiguous(), group=ctx.group)
        return mine, None
