"""Megatron's core attention over a packed row, in which the responses of a group may share one copy of their prompt.

A row's layout says which tokens see which. Backends, chosen by `policy.attention`:

    flash  flash kernels for sequences of many lengths, bf16 on GPU (`attention_flash`)
    flex   one FlexAttention kernel (arXiv 2412.05496), which skips empty blocks of its mask, on GPU
    sdpa   block by block: on CPU around the flash kernel (`cpu.kernels`), elsewhere torch's own, one call per block,
           the keys of what its stretches see in front of their own

Under context parallelism every stretch of a cut block is padded to 2·ranks pieces of equal length; rank r holds pieces
r and 2·ranks − 1 − r, so that all ranks have the same share of causal work (`row_builder`). Only keys and values of cut
stretches travel, and are put in order; the queries stay.

FlexAttention has no backward on CPU. Its kernel and mask are compiled with dynamic shapes, and rows padded to a
multiple of ROW_MULTIPLE tokens, so that rows of any length share what is compiled.

Rotary positions are looked up here, as Megatron's own embedding takes a row for one sequence. Its frequencies are not
used either: Megatron 0.16.1 fixes Llama 3's bounds, and its YaRN differs in the last bits.

Legend: T tokens of the row, t cut tokens of this rank, C = t · ranks rows of the context, S keys (context, then row), B
stretches of a block, L their length, P keys in front, H heads, K key-value heads, D head size; P also positions of the
rotation table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.core.model_shape import ModelShape, Rope
from nemo_brorl.policy.cpu.kernels import attend_on_cpu
from nemo_brorl.policy.model.attention_flash import attend_with_flash
from nemo_brorl.policy.process.device import compiled, fix_sizes
from nemo_brorl.policy.process.layout import ParallelLayout
from nemo_brorl.policy.rows.packed_rows import Block, Context, Packing, Sight, Span


def inverse_frequencies(rope: Rope, head_size: int) -> Tensor:
    """Radians per position of every pair of dimensions, [D / 2] float32."""
    if rope.kind == "default":  # no entry of transformers' table
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        return 1.0 / rope.base**exponents
    from transformers import LlamaConfig  # takes seconds, and most models are not stretched
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": rope.kind,
        "rope_theta": rope.base,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_positions,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "truncate": rope.is_truncated,
        "attention_factor": rope.attention_factor,
    }
    config = LlamaConfig(head_dim=head_size)
    config.rope_parameters = parameters  # set late: the constructor warns of what another kind would need
    frequencies, _ = ROPE_INIT_FUNCTIONS[rope.kind](config, torch.device("cpu"))
    return frequencies


def rotation_table(num_positions: int, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
    """Cosines, then sines, of the angle of every position and pair of dimensions: [P, D]. Angles are float32."""
    positions = torch.arange(num_positions, dtype=torch.float32, device=frequencies.device)
    angles = torch.outer(positions, frequencies)
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    return table.to(dtype)


class PackedRotary(RotaryEmbedding):
    """Megatron's rotary embedding with other frequencies. Leaves on every packing one table for all of them, in the
    format of the activations: rows of a whole update exist at once, and 16,384 tokens of cosines are 8 MB."""

    def __init__(self, *args: Any, dtype: torch.dtype, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dtype = dtype
        self.table = torch.empty(0)

    def get_rotary_seq_len(self, *args: Any, **kwargs: Any) -> Packing:
        """Megatron hands over what this returns; the packing is all that is needed."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, Packing):
                return value
        raise AssertionError("the policy's model reads packed rows only")

    def forward(self, packing: Packing, *args: Any, **kwargs: Any) -> None:
        """Nothing for Megatron to apply; `packing.rotation` is set."""
        assert packing.positions is not None, "a packing to run the model on has positions"
        if len(self.table) < packing.num_positions:
            num_positions = 1 << (packing.num_positions - 1).bit_length()  # longer rows may come
            frequencies = self.inv_freq.to(packing.positions.device)
            self.table = rotation_table(num_positions, frequencies, self.dtype)
        packing.rotation = self.table


def rotate(heads: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    """Pair (d, d + D / 2) of every head [T, H, D] turned by the angle of its token's position [T] in the table [P,
    D]."""
    return _Rotate.apply(heads, table, positions)


class _Rotate(torch.autograd.Function):
    """Two products per half instead of the six passes over memory of `x * cos + rotate_half(x) * sin`; on GPUs one
    pass. Megatron's own fused rotation takes a row for one sequence."""

    @staticmethod
    def forward(
        ctx: Any,
        heads: Tensor,
        table: Tensor,
        positions: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(table, positions)
        return _rotated(heads, table, positions, direction=1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        table, positions = ctx.saved_tensors
        return _rotated(grad, table, positions, direction=-1.0), None, None


def _rotated(
    heads: Tensor,
    table: Tensor,
    positions: Tensor,
    direction: float,
) -> Tensor:
    if heads.is_cuda:
        rotate_at_once = compiled(rotated_at_once, direction=direction)
        return rotate_at_once(fix_sizes(heads, 1, 2), fix_sizes(table, 1), positions)
    turns = table.index_select(0, positions)
    cosine, sine = turns[:, None].chunk(2, -1)
    first, second = heads.chunk(2, -1)
    rotated = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)  # contiguous
    rotated_first, rotated_second = rotated.chunk(2, -1)
    torch.mul(first, cosine, out=rotated_first)
    rotated_first.addcmul_(second, sine, value=-direction)
    torch.mul(second, cosine, out=rotated_second)
    rotated_second.addcmul_(first, sine, value=direction)
    return rotated


def rotated_at_once(
    heads: Tensor,
    table: Tensor,
    positions: Tensor,
    direction: float,
) -> Tensor:
    """What `_rotated` returns, without steps in place: torch makes one kernel of it, which reads and writes every head
    once. Both halves are one expression: of two put together it would compute each for every number."""
    turns = table.index_select(0, positions)
    cosine, sine = turns[:, None, None].chunk(2, -1)
    halves = heads.unflatten(-1, (2, -1))
    sign = torch.arange(2, device=heads.device)[:, None] * 2 - 1  # −1 and 1
    signed_sine = sine * (sign * direction).to(sine.dtype)
    rotated = halves * cosine + halves.flip(-2) * signed_sine
    return rotated.flatten(-2)


def attend_by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context | None,
    packing: Packing,
    scale: float,
) -> Tensor:
    """query [T, H, D], key and value [T, K, D], context (key, value) [C, K, D] or None where it is the row itself; [T,
    H, D]."""
    if context is None:
        context = (key, value)
    sizes = [block.num_tokens for block in packing.blocks]
    # one split of each, whose backward is one concatenation
    queries = query.split(sizes)
    keys = key.split(sizes)
    values = value.split(sizes)
    outputs = []
    for index, block in enumerate(packing.blocks):
        own_query = _stretches(queries[index], block)
        own_key = _stretches(keys[index], block)
        own_value = _stretches(values[index], block)
        output = _attend(block, own_query, own_key, own_value, context, packing, scale)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _stretches(heads: Tensor, block: Block) -> Tensor:
    """[B * L, H, D] to [B, H, L, D]."""
    by_stretch = heads.unflatten(0, (block.num, block.length))
    return by_stretch.transpose(1, 2)


def _attend(
    block: Block,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context,
    packing: Packing,
    scale: float,
) -> Tensor:
    """One block: [B, H, L, D]."""
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
    """[C, K, D] to [B, K, P, D]."""
    if span.stride == 0:
        end = span.start + span.length
        seen_by_all = heads[span.start : end].transpose(0, 1)
        return seen_by_all.expand(num, -1, -1, -1)
    end = span.start + num * span.stride
    rows = heads[span.start : end]
    by_stretch = rows.unflatten(0, (num, span.stride))
    seen_by_each = by_stretch[:, : span.length]
    return seen_by_each.transpose(1, 2)


def _mask(
    packing: Packing,
    num_before: int,
    length: int,
    device: torch.device,
) -> Tensor:
    """[L, P + L] bool, True where a token may look: all that is in front, and its own past."""
    key = (num_before, length)
    if key not in packing.caches:
        num_keys = num_before + length
        allowed = torch.ones(length, num_keys, dtype=torch.bool, device=device)
        packing.caches[key] = allowed.tril(num_before)
    return packing.caches[key]


ROW_MULTIPLE = 256  # tokens: two of FlexAttention's blocks, because a row of a single one is compiled apart
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attend_with_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Context | None,
    packing: Packing,
    scale: float,
) -> Tensor:
    """query [T, H, D], key and value [T, K, D], context (key, value) [C, K, D] or None; [T, H, D]."""
    if context is not None:
        key = torch.cat([context[0], key])
        value = torch.cat([context[1], value])
    is_grouped = query.size(1) != key.size(1)
    mask = block_mask(packing, query.device)
    attend = _compiled(flex_attention, query.device, scale=scale, enable_gqa=is_grouped)
    output = attend(_batched(query), _batched(key), _batched(value), block_mask=mask)
    return output[0].transpose(0, 1)


def _batched(heads: Tensor) -> Tensor:
    """[T, H, D] to [1, H, T, D]."""
    return heads.transpose(0, 1)[None]


def block_mask(packing: Packing, device: torch.device) -> BlockMask:
    """Built once per row, for all layers and passes."""
    if "flex" not in packing.caches:
        sight = packing.sight
        assert sight is not None, "the row was built for FlexAttention"
        create = _compiled(create_block_mask, device)
        num_queries = len(sight.query_stretch)
        num_keys = len(sight.key_stretch)
        sees = mask_mod(sight)
        packing.caches["flex"] = create(sees, None, None, num_queries, num_keys, device=str(device))
    return packing.caches["flex"]


def mask_mod(sight: Sight) -> MaskMod:
    """Whether query `q` sees key `k`: its own stretch and what that stands on, up to itself."""
    query_stretch = sight.query_stretch
    query_position = sight.query_position
    key_stretch = sight.key_stretch
    key_last = sight.key_last
    key_position = sight.key_position

    def sees(
        batch: Tensor,
        head: Tensor,
        q: Tensor,
        k: Tensor,
    ) -> Tensor:
        is_after = key_stretch[k] <= query_stretch[q]
        is_in_subtree = query_stretch[q] <= key_last[k]
        is_past = key_position[k] <= query_position[q]
        return is_after & is_in_subtree & is_past

    return sees


def _compiled(function: Any, device: torch.device, **constants: Any) -> Any:
    """Compiled on GPU, where the mask would else be written down for all pairs of tokens; as it is on CPU, for tests of
    the mask."""
    if device.type == "cpu":
        return partial(function, **constants)
    return compiled(function, **constants)


_BACKENDS = {"flash": attend_with_flash, "flex": attend_with_flex, "sdpa": attend_by_blocks}
_LARGEST_FLASH_HEAD = 256


def choose_attention(policy: PolicyConfig, layout: ParallelLayout, shape: ModelShape) -> tuple[str, str]:
    """The backend of `policy.attention`, and why it is that one."""
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
    """Rotates queries and keys, gathers what other context-parallel ranks hold, attends. No parameters, no dropout."""

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
        """query [T, 1, H, D], key and value [T, 1, K, D] to [T, 1, H * D]."""
        packing = packed_seq_params
        assert isinstance(packing, Packing), "the policy's model reads packed rows only"
        assert packing.rotation is not None, "PackedRotary has run before the first layer"
        assert packing.positions is not None, "a packing to run the model on has positions"
        query = rotate(query.squeeze(1), packing.rotation, packing.positions)
        key = rotate(key.squeeze(1), packing.rotation, packing.positions)
        value = value.squeeze(1)
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
    """Keys and values [C, K, D] of all ranks' cut stretches, each stretch in its own order; None when nothing is cut,
    which all ranks find alike. One collective for both."""
    if packing.num_cut == 0:
        return None
    cut_key = key[: packing.num_cut]
    cut_value = value[: packing.num_cut]
    both = torch.stack([cut_key, cut_value], dim=1)
    gathered = _Gather.apply(both, group)
    ordered = gathered.index_select(0, packing.context_order)
    return ordered[:, 0], ordered[:, 1]


class _Gather(torch.autograd.Function):
    """[t, ...] of every rank to [C, ...]; a gradient goes back to the rank it belongs to, summed over all ranks."""

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
