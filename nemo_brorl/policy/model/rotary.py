"""Apply rotary positions to a packed row: frequencies, a table of all positions, and the rotation of heads.

Positions are looked up, because Megatron's own embedding treats a row as one sequence. Its frequencies are not used
either: Megatron 0.16.1 fixes Llama 3's bounds, and its YaRN differs in the last bits.

Legend: T tokens of the row, H heads, D head size, P positions of the rotation table.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor

from nemo_brorl.core.model_shape import Rope
from nemo_brorl.policy.process.device import compiled, fix_sizes
from nemo_brorl.policy.rows.packed_rows import Packing


def inverse_frequencies(rope: Rope, head_size: int) -> Tensor:
    """Return the rotary frequencies: radians per position for every pair of dimensions, [D / 2] float32.

    They are 0 for dimensions that do not rotate.
    """
    num_rotated = rope.num_rotated(head_size)
    frequencies = _frequencies(rope, num_rotated)
    return torch.nn.functional.pad(frequencies, (0, (head_size - num_rotated) // 2))


def _frequencies(rope: Rope, head_size: int) -> Tensor:
    # transformers' table has no entry for the default.
    if rope.kind == "default":
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        return 1.0 / rope.base**exponents
    # This import takes seconds, and most models do not scale their positions.
    from transformers import LlamaConfig
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
    # The constructor would warn about parameters that another kind needs, so they are set afterwards.
    config.rope_parameters = parameters
    frequencies, _ = ROPE_INIT_FUNCTIONS[rope.kind](config, torch.device("cpu"))
    return frequencies


def rotation_table(num_positions: int, frequencies: Tensor, dtype: torch.dtype, factor: float = 1.0) -> Tensor:
    """Return a table [P, D] with cosines, then sines, of the rotary angle of every position and pair of dimensions.

    Angles are computed in float32. Queries and keys that rotate are multiplied by `factor`.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=frequencies.device)
    angles = torch.outer(positions, frequencies)
    factors = torch.where(frequencies > 0, factor, 1.0)
    table = torch.cat([angles.cos() * factors, angles.sin() * factors], dim=1)
    return table.to(dtype)


class PackedRotary(RotaryEmbedding):
    """Megatron's rotary embedding with other frequencies, which sets one rotation table on every packing.

    The table has the format of the activations and is shared, because all rows of an update exist at once and 16,384
    tokens of cosines take 8 MB.
    """

    def __init__(self, *args: Any, rope: Rope, dtype: torch.dtype, **kwargs: Any) -> None:
        super().__init__(*args, rotary_percent=1.0, rotary_base=rope.base, **kwargs)
        self.inv_freq = inverse_frequencies(rope, kwargs["kv_channels"])
        self.factor = rope.attention_factor
        self.dtype = dtype
        self.table = torch.empty(0)

    def get_rotary_seq_len(self, *args: Any, **kwargs: Any) -> Packing:
        """Return the layout of the packed row (`Packing`), which Megatron passes among the arguments.

        Megatron then gives the result to the rotary embedding's `forward`, which needs nothing but the layout.
        """
        for value in (*args, *kwargs.values()):
            if isinstance(value, Packing):
                return value
        raise AssertionError("the policy's model reads packed rows only")

    def forward(self, packing: Packing, *args: Any, **kwargs: Any) -> None:
        """Set the rotation table of the packed row's layout and return None, so that Megatron rotates nothing."""
        assert packing.positions is not None, "a packing to run the model on has positions"
        if len(self.table) < packing.num_positions:
            num_positions = 1 << (packing.num_positions - 1).bit_length()  # room for longer rows
            frequencies = self.inv_freq.to(packing.positions.device)
            self.table = rotation_table(num_positions, frequencies, self.dtype, self.factor)
        packing.rotation = self.table


def rotate(heads: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    """Return queries or keys [T, H, D] with each pair (d, d + D / 2) turned by the angle of its token's position.

    `table` [P, D] has the cosines and sines of P positions. `positions` is [T].
    """
    return _Rotate.apply(heads, table, positions)


class _Rotate(torch.autograd.Function):
    """Autograd function for the rotation with two products per half, on GPUs in one pass over memory.

    `x * cos + rotate_half(x) * sin` takes six passes. Megatron's own fused rotation treats a row as one sequence.
    """

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
    # A contiguous result, also where the heads are a view.
    rotated = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
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
    """Return queries or keys after rotary embedding, without in-place steps, so that torch compiles a single kernel.

    The kernel reads and writes every head once. One expression computes both halves of a head. If two expressions were
    concatenated, torch would compute both of them for every number.
    """
    turns = table.index_select(0, positions)
    cosine, sine = turns[:, None, None].chunk(2, -1)
    halves = heads.unflatten(-1, (2, -1))
    sign = torch.arange(2, device=heads.device)[:, None] * 2 - 1  # values −1 and 1
    signed_sine = sine * (sign * direction).to(sine.dtype)
    rotated = halves * cosine + halves.flip(-2) * signed_sine
    return rotated.flatten(-2)
