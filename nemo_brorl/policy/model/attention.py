"""Replace Megatron's core attention by one over packed rows, where responses of a group may share their prompt.

A row's layout says which tokens attend to which. Backends, chosen by `policy.attention`:

    flash  flash kernels for sequences of many lengths, bf16 on GPU (`attention_flash`)
    flex   one FlexAttention kernel (arXiv 2412.05496), which skips empty blocks of its mask, on GPU (`attention_flex`)
    sdpa   block by block: on CPU around the flash kernel (`cpu.attention`), elsewhere torch's own
           (`attention_blocks`)

Under context parallelism every segment of a cut block is padded to 2·ranks pieces of equal length. Rank r holds pieces
r and 2·ranks − 1 − r, so that all ranks have an equal share of causal work (`row_builder`). Only keys and values of cut
segments are gathered and put in order. Queries stay on their rank.

Legend: T tokens of the row, t cut tokens of this rank, C = t · ranks rows of the context, H heads, K key-value heads, D
head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.policy.cpu.attention import attend_on_cpu
from nemo_brorl.policy.model.attention_blocks import attend_by_blocks
from nemo_brorl.policy.model.attention_flash import attend_with_flash
from nemo_brorl.policy.model.attention_flex import attend_with_flex
from nemo_brorl.policy.model.rotary import rotate
from nemo_brorl.policy.rows.packed_rows import Context, Packing

_BACKENDS = {"flash": attend_with_flash, "flex": attend_with_flex, "sdpa": attend_by_blocks}
_LARGEST_FLASH_HEAD = 256


def choose_attention(policy: PolicyConfig, layout: ParallelLayout, shape: ModelShape) -> tuple[str, str]:
    """Return the name of the attention backend that `policy.attention` selects, and the reason for the choice."""
    if policy.attention != "auto":
        return policy.attention, "policy.attention says so"
    if not layout.on_gpu:
        return "sdpa", "the policy is on CPU"
    if policy.precision != "bf16":
        return "flex", f"flash kernels take bf16 and policy.precision is {policy.precision}"
    if shape.head_size % 8 or shape.head_size > _LARGEST_FLASH_HEAD:
        return "flex", f"flash kernels take heads of multiples of 8 up to 256 and the model's have {shape.head_size}"
    return "flash", "the policy is in bf16 on GPUs"


class PackedAttention(torch.nn.Module):
    """Core attention of one layer: rotates queries and keys, gathers cut segments of other ranks, and attends.

    It has no parameters and no dropout.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        *args: Any,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        assert config.attention_dropout == 0, "packed attention has no dropout"
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale
        self.is_rotating = not (config.no_rope_freq and config.no_rope_freq[layer_number - 1])
        self.context_group = pg_collection.cp if config.context_parallel_size > 1 else None

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
        """Return the attention output [T, 1, H * D] of queries [T, 1, H, D], keys and values [T, 1, K, D] of T tokens.

        H query heads and K key-value heads have size D. Most layers first rotate queries and keys by their positions.
        """
        packing = packed_seq_params
        assert isinstance(packing, Packing), "the policy's model reads packed rows only"
        assert packing.rotation is not None, "PackedRotary has run before the first layer"
        assert packing.positions is not None, "a packing to run the model on has positions"
        query, key, value = query.squeeze(1), key.squeeze(1), value.squeeze(1)
        if self.is_rotating:
            query = rotate(query, packing.rotation, packing.positions)
            key = rotate(key, packing.rotation, packing.positions)
        context = None
        if self.context_group is not None:
            context = gather_context(key, value, packing, self.context_group)
        attend = _BACKENDS[packing.attention]
        if attend is attend_by_blocks and query.device.type == "cpu":
            attend = attend_on_cpu
        output = attend(query, key, value, context, packing, self.scale)
        return output.flatten(1)[:, None]


def gather_context(
    key: Tensor,
    value: Tensor,
    packing: Packing,
    group: dist.ProcessGroup,
) -> Context | None:
    """Return the keys and values [C, K, D] of the segments that are split over context-parallel ranks, in token order.

    K key-value heads have size D. Returns None when no segment of the packed row is split, which is so on all ranks or
    on none. Collective, with one message for keys and values together.
    """
    if packing.num_cut == 0:
        return None
    cut_key = key[: packing.num_cut]
    cut_value = value[: packing.num_cut]
    both = torch.stack([cut_key, cut_value], dim=1)
    gathered = _Gather.apply(both, group)
    ordered = gathered.index_select(0, packing.context_order)
    return ordered[:, 0], ordered[:, 1]


class _Gather(torch.autograd.Function):
    """Autograd function that gathers [t, ...] of every rank to [C, ...].

    In the backward pass gradients return to the rank that they belong to, summed over all ranks.
    """

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        num_rows = group.size() * mine.size(0)
        whole = mine.new_empty(num_rows, *mine.shape[1:])
        dist.all_gather_into_tensor(whole, mine.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        num_rows = grad.size(0) // ctx.group.size()
        mine = grad.new_empty(num_rows, *grad.shape[1:])
        dist.reduce_scatter_tensor(mine, grad.contiguous(), group=ctx.group)
        return mine, None
