"""Arithmetic of Transformer Engine's FP8 quantisation in plain torch: formats, scales, tiles, amax histories.

A quantised tensor is kept as the numbers that FP8 can hold. All of them are exact in bf16 (an e4m3 number has four
significant bits, e5m2 three), and so are their products with a power of two. What is left of the scale is one fp32
factor that belongs behind the product, where the GPU applies it too: fp32 sums of exact products, then the scales, then
one rounding.

Followed are the sources of Transformer Engine 2.11: `compute_scale_from_amax` of its common/recipe,
`Float8CurrentScaling`, `Float8BlockScaling` (powers of two by default, common/recipe/__init__.py) and `DelayedScaling`
with its update in pytorch/quantization.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 128  # numbers that share a scale in the blockwise recipe, along each tiled axis


@dataclass(frozen=True)
class Fp8Format:
    """An FP8 type and the largest number it holds."""

    dtype: torch.dtype
    largest: float


E4M3 = Fp8Format(torch.float8_e4m3fn, 448.0)
E5M2 = Fp8Format(torch.float8_e5m2, 57344.0)


@dataclass(frozen=True)
class Quantised:
    """A matrix [R, C] of FP8 numbers, times `factor`."""

    values: Tensor  # bf16 [R, C]
    factor: Tensor | None = None  # fp32 []; None: 1, the scales are powers of two and already in the values

    @property
    def dequantised(self) -> Tensor:
        """fp32 [R, C], what the tensor stands for."""
        values = self.values.float()
        if self.factor is None:
            return values
        return values * self.factor

    def transposed(self) -> Quantised:
        """[C, R], the same numbers."""
        return Quantised(self.values.t(), self.factor)


def scale_for(amax: Tensor, largest: float, power_of_two: bool) -> Tensor:
    """What to multiply by so that `amax` becomes the largest number of the format: fp32, the shape of `amax`.

    1 for an amax of zero, infinity or NaN; the largest fp32 number where the quotient overflows; with `power_of_two`
    the largest power of two that is not above.
    """
    amax = amax.float()
    largest_scale = torch.finfo(torch.float32).max
    scale = (largest / amax).clamp(max=largest_scale)
    if power_of_two:
        mantissa, exponent = torch.frexp(scale)
        half = torch.full_like(mantissa, 0.5)
        scale = torch.ldexp(half, exponent)
    is_usable = (amax > 0) & torch.isfinite(amax)
    one = torch.ones_like(scale)
    return torch.where(is_usable, scale, one)


def round_to(numbers: Tensor, to: Fp8Format) -> Tensor:
    """The nearest FP8 numbers (ties to even), saturating; NaN stays NaN. fp32 in, bf16 out, any shape."""
    saturated = numbers.clamp(-to.largest, to.largest)
    return saturated.to(to.dtype).bfloat16()


def largest_absolute(tensor: Tensor) -> Tensor:
    """fp32 []; 0 for an empty tensor, such as the input of an expert without tokens."""
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    amax = tensor.detach().abs().amax()
    return amax.float()


def per_tensor(tensor: Tensor, to: Fp8Format, scale: Tensor) -> Quantised:
    """Quantised with one scale []."""
    scaled = tensor.float() * scale
    return Quantised(round_to(scaled, to), scale.reciprocal())


def per_tile(
    matrix: Tensor,
    to: Fp8Format,
    rows: int,
    columns: int,
) -> Quantised:
    """Quantised with one power-of-two scale per tile of `rows` x `columns`; tiles at the end may be smaller. [R, C] ->
    [R, C]."""
    num_rows, num_columns = matrix.shape
    if matrix.numel() == 0:
        return Quantised(matrix.bfloat16())
    down = math.ceil(num_rows / rows)
    across = math.ceil(num_columns / columns)
    missing_rows = down * rows - num_rows
    missing_columns = across * columns - num_columns
    padding = (0, missing_columns, 0, missing_rows)
    padded = F.pad(matrix, padding)
    tiles = padded.reshape(down, rows, across, columns)
    amax = tiles.abs().amax((1, 3), keepdim=True)
    scale = scale_for(amax, to.largest, power_of_two=True)
    values = round_to(tiles * scale, to)
    values = values * scale.reciprocal().bfloat16()  # exact
    matrix_values = values.view(padded.shape)
    return Quantised(matrix_values[:num_rows, :num_columns])


def product(left: Quantised, right: Quantised, dtype: torch.dtype) -> Tensor:
    """left [M, K] @ right [K, N] in `dtype`, summed in fp32 and rounded once."""
    has_factor = left.factor is not None or right.factor is not None
    if not has_factor and dtype == torch.bfloat16:
        return left.values @ right.values  # bf16 in and out, the kernel sums in fp32
    left_values = left.values.float()
    right_values = right.values.float()
    result = left_values @ right_values
    for factor in (left.factor, right.factor):
        if factor is not None:
            result *= factor
    return result.to(dtype)


class AmaxHistory:
    """Delayed scaling of one tensor. `amaxes` [length]: entry 0 gathers the current largest absolute value, the others
    are those of the last steps. `scale` []: used now, computed at the end of the last step; 1 before the first.

    A step is one training forward (or backward) of a micro-batch, as in Transformer Engine.
    """

    def __init__(self, length: int, largest: float) -> None:
        self.largest = largest
        self.amaxes = torch.zeros(length)
        self.scale = torch.ones(())

    @property
    def is_fresh(self) -> bool:
        """No step has ended yet."""
        has_history = bool(self.amaxes[1:].any())
        return not has_history and float(self.scale) == 1.0

    def record(self, tensor: Tensor) -> None:
        """Take in a tensor that is being quantised."""
        amax = largest_absolute(tensor)
        self.amaxes[0] = torch.maximum(self.amaxes[0], amax)

    def end_step(self, amax: Tensor) -> None:
        """Close the current entry with its value over all ranks: the largest of the whole history gives the next
        scale."""
        self.amaxes[0] = amax
        highest = self.amaxes.max()
        self.amaxes = self.amaxes.roll(-1)
        self.amaxes[0] = 0.0
        if highest > 0 and torch.isfinite(highest):  # otherwise the scale stays
            self.scale = scale_for(highest, self.largest, power_of_two=False)

    def state(self) -> Tensor:
        """fp32 [1 + length]: the scale, then the history."""
        return torch.cat([self.scale[None], self.amaxes])

    def load(self, state: Any) -> None:
        """Continue from `state`; one of another length is cut, or filled up with zeros."""
        self.scale = state[0].clone()
        self.amaxes = torch.zeros_like(self.amaxes)
        self.amaxes[0] = state[1]
        past = state[2:]  # oldest first, as `roll` leaves them
        num_kept = min(len(past), len(self.amaxes) - 1)
        if num_kept > 0:
            self.amaxes[-num_kept:] = past[-num_kept:]
