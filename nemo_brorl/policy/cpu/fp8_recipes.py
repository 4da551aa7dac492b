"""The three FP8 recipes for the operands of one linear layer, which scale each of its three products uses, and the
arithmetic of Transformer Engine's quantisation in plain torch: formats, scales, tiles, amax histories.

Legend of shapes: x [T, in] input, w [out, in] weight, g [T, out] gradient of the output. The products are
y = x wᵀ, dx = g w and dw = gᵀ x, so x and g are each used once along their rows and once along their columns.

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
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_brorl.config.policy import PolicyConfig

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
    # As Transformer Engine: a tensor of zeros, or one that has overflowed, is left as it is.
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
    # Tiles at the end are filled with zeros, which change no largest number.
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
    # Behind the product, as on a GPU: scaling the factors would round them.
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
        # The largest of the history, not of the last step: one quiet step must not make the next one overflow
        highest = self.amaxes.max()
        # Transformer Engine's order: entry 0 is the step under way, the oldest step follows it.
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


class ProductPhase(Enum):
    """Why a forward product runs; only delayed scaling cares."""

    FORWARD = auto()  # training, or scoring, which differs only in that no step ends
    CHECKPOINTED = auto()  # the first pass of a training forward that will be recomputed
    RECOMPUTED = auto()


@dataclass(frozen=True)
class Operands:
    """A tensor quantised for its two uses, both in the layout of the tensor itself."""

    by_row: Quantised  # for y or dx
    by_column: Quantised  # for dw, summed over tokens


class LinearRecipe(Protocol):
    """Quantises the operands of one linear layer, whose own state it holds."""

    def inputs(self, x: Tensor, w: Tensor, phase: ProductPhase) -> tuple[Operands, Quantised]:
        """Of a forward pass: input and weight. A weight has the same values in both of its uses."""

    def gradient(self, g: Tensor) -> Operands:
        """Of a backward pass."""

    def extra_state(self) -> Tensor | None:
        """What a checkpoint keeps; None: nothing."""

    def load_extra_state(self, state: Any) -> None:
        """Continue from `extra_state`; None starts afresh."""


@dataclass(frozen=True)
class Formats:
    """hybrid: e4m3 forward for range 448, e5m2 for gradients; e4m3: everything."""

    forward: Fp8Format
    gradient: Fp8Format


FORMATS = {"hybrid": Formats(E4M3, E5M2), "e4m3": Formats(E4M3, E4M3)}


class _Stateless:
    """Scales come from the tensor at hand, so that recomputing gives the same by itself."""

    def __init__(self, formats: Formats) -> None:
        self.formats = formats

    def extra_state(self) -> Tensor | None:
        return None

    def load_extra_state(self, state: Any) -> None:
        return None


class Tensorwise(_Stateless):
    """`Float8CurrentScaling`: one scale for each tensor, from its largest number now.

    Under tensor parallelism every rank takes its own slice's largest number, as Transformer Engine does. It reduces
    over the tensor-parallel group only where sequence parallelism gathers a tensor, which here is quantised after
    gathering.
    """

    def inputs(self, x: Tensor, w: Tensor, phase: ProductPhase) -> tuple[Operands, Quantised]:
        quantised = self._now(x, self.formats.forward)
        weight = self._now(w, self.formats.forward)
        return Operands(quantised, quantised), weight

    def gradient(self, g: Tensor) -> Operands:
        quantised = self._now(g, self.formats.gradient)
        return Operands(quantised, quantised)

    @staticmethod
    def _now(tensor: Tensor, to: Fp8Format) -> Quantised:
        scale = scale_for(largest_absolute(tensor), to.largest, power_of_two=False)
        return per_tensor(tensor, to, scale)


class Blockwise(_Stateless):
    """`Float8BlockScaling`: scales for 1 x 128 numbers of x and g along the axis that a product sums over, for 128 x
    128 of w."""

    def inputs(self, x: Tensor, w: Tensor, phase: ProductPhase) -> tuple[Operands, Quantised]:
        weight = per_tile(w, self.formats.forward, TILE, TILE)
        return self._both(x, self.formats.forward), weight

    def gradient(self, g: Tensor) -> Operands:
        return self._both(g, self.formats.gradient)

    @staticmethod
    def _both(tensor: Tensor, to: Fp8Format) -> Operands:
        by_row = per_tile(tensor, to, 1, TILE)
        by_column = per_tile(tensor, to, TILE, 1)
        return Operands(by_row, by_column)


class Delayed:
    """`DelayedScaling`: one scale for each tensor, from the largest number of the last steps before this one.

    Whatever is quantised counts towards the current step, scoring included; a step ends with a training forward or
    backward. A recomputed forward uses the scales of the first one and counts for nothing.
    """

    def __init__(self, formats: Formats, history: int) -> None:
        self.formats = formats
        self.x = AmaxHistory(history, formats.forward.largest)
        self.w = AmaxHistory(history, formats.forward.largest)
        self.g = AmaxHistory(history, formats.gradient.largest)
        # scales of forwards to be recomputed; their backwards keep the order
        self.kept: deque[tuple[Tensor, Tensor]] = deque()

    def inputs(self, x: Tensor, w: Tensor, phase: ProductPhase) -> tuple[Operands, Quantised]:
        if phase is ProductPhase.RECOMPUTED:
            # The scales may have moved on since: other rows were run between a forward pass and its backward.
            x_scale, w_scale = self.kept.popleft()
        else:
            self.x.record(x)
            self.w.record(w)
            x_scale = self.x.scale
            w_scale = self.w.scale
        if phase is ProductPhase.CHECKPOINTED:
            self.kept.append((x_scale, w_scale))
        quantised = per_tensor(x, self.formats.forward, x_scale)
        weight = per_tensor(w, self.formats.forward, w_scale)
        return Operands(quantised, quantised), weight

    def gradient(self, g: Tensor) -> Operands:
        self.g.record(g)
        quantised = per_tensor(g, self.formats.gradient, self.g.scale)
        return Operands(quantised, quantised)

    def extra_state(self) -> Tensor:
        """fp32 [3, 1 + history]: input, weight, gradient. The same on all ranks, because amaxes are reduced over
        them."""
        states = [self.x.state(), self.w.state(), self.g.state()]
        return torch.stack(states)

    def load_extra_state(self, state: Any) -> None:
        if state is None:
            return
        x, w, g = state
        self.x.load(x)
        self.w.load(w)
        self.g.load(g)


def make_recipe(policy: PolicyConfig) -> LinearRecipe:
    """A new recipe for one linear layer of `policy`, whose `fp8` and `fp8_recipe` the rules have checked."""
    assert policy.fp8 is not None, "a recipe is asked for only with policy.fp8"
    formats = FORMATS[policy.fp8]
    if policy.fp8_recipe == "delayed":
        return Delayed(formats, policy.fp8_amax_history)
    if policy.fp8_recipe == "blockwise":
        return Blockwise(formats)
    return Tensorwise(formats)
