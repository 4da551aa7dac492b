"""Implement three FP8 recipes for one linear layer, with the arithmetic of Transformer Engine's quantisation in torch.

A recipe says which scale each of the layer's three products uses. The arithmetic is formats, scales, tiles and amax
histories.

Legend of shapes: x [T, in] input, w [out, in] weight, g [T, out] gradient of the output. The products are
y = x wᵀ, dx = g w and dw = gᵀ x, so x and g are each used once along their rows and once along their columns.

A quantised tensor is stored as the numbers that FP8 can hold. All of them are exact in bf16 (an e4m3 number has four
significant bits, e5m2 three), and so are their products with a power of two. The rest of the scale is one fp32 factor
that is applied after the product, as on a GPU: fp32 sums of exact products, then the scales, then one rounding.

The code follows the sources of Transformer Engine 2.11: `compute_scale_from_amax` of its common/recipe,
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
    """An FP8 type and the largest number that it can hold."""

    dtype: torch.dtype
    largest: float


E4M3 = Fp8Format(torch.float8_e4m3fn, 448.0)
E5M2 = Fp8Format(torch.float8_e5m2, 57344.0)


@dataclass(frozen=True)
class Quantised:
    """A matrix [R, C] of FP8 numbers, times `factor`."""

    values: Tensor  # bf16 [R, C]
    factor: Tensor | None = None  # fp32 []; None: 1, because the scales are powers of two and in the values already

    @property
    def dequantised(self) -> Tensor:
        """Matrix in fp32 [R, C]: the quantised FP8 numbers times their scale factor."""
        values = self.values.float()
        if self.factor is None:
            return values
        return values * self.factor

    def transposed(self) -> Quantised:
        """Return the quantised matrix transposed, [C, R]."""
        return Quantised(self.values.t(), self.factor)


def scale_for(amax: Tensor, largest: float, power_of_two: bool) -> Tensor:
    """Return the factor that turns `amax` into the largest number of an FP8 format, fp32 in the shape of `amax`.

    The factor is 1 for an amax of zero, infinity or NaN, and the largest fp32 number where `largest` / `amax`
    overflows. With `power_of_two` it is the largest power of two that is not above this quotient.
    """
    amax = amax.float()
    largest_scale = torch.finfo(torch.float32).max
    scale = (largest / amax).clamp(max=largest_scale)
    if power_of_two:
        mantissa, exponent = torch.frexp(scale)
        half = torch.full_like(mantissa, 0.5)
        scale = torch.ldexp(half, exponent)
    # As in Transformer Engine, a tensor of zeros or one that has overflowed is not scaled.
    is_usable = (amax > 0) & torch.isfinite(amax)
    one = torch.ones_like(scale)
    return torch.where(is_usable, scale, one)


def round_to(numbers: Tensor, to: Fp8Format) -> Tensor:
    """Return fp32 numbers of any shape rounded to the nearest FP8 numbers (ties to even), as bf16.

    Numbers beyond the range of the FP8 format saturate. NaN stays NaN.
    """
    saturated = numbers.clamp(-to.largest, to.largest)
    return saturated.to(to.dtype).bfloat16()


def largest_absolute(tensor: Tensor) -> Tensor:
    """Return a tensor's largest absolute value, fp32 [], or 0 for an empty tensor.

    A tensor is empty where it is the input of an expert without tokens.
    """
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    amax = tensor.detach().abs().amax()
    return amax.float()


def per_tensor(tensor: Tensor, to: Fp8Format, scale: Tensor) -> Quantised:
    """Return a tensor quantised to FP8 with one scale [] for all of its numbers."""
    scaled = tensor.float() * scale
    return Quantised(round_to(scaled, to), scale.reciprocal())


def per_tile(
    matrix: Tensor,
    to: Fp8Format,
    rows: int,
    columns: int,
) -> Quantised:
    """Return a matrix [R, C] quantised to FP8 with one power-of-two scale per tile of `rows` × `columns`.

    Tiles at the end may be smaller.
    """
    num_rows, num_columns = matrix.shape
    if matrix.numel() == 0:
        return Quantised(matrix.bfloat16())
    # Tiles at the end are filled with zeros, which do not change the largest number.
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
    values = values * scale.reciprocal().bfloat16()  # exact, because the scale is a power of two
    matrix_values = values.view(padded.shape)
    return Quantised(matrix_values[:num_rows, :num_columns])


def product(left: Quantised, right: Quantised, dtype: torch.dtype) -> Tensor:
    """Return left [M, K] @ right [K, N] of quantised matrices in `dtype`, summed in fp32 and rounded once."""
    has_factor = left.factor is not None or right.factor is not None
    if not has_factor and dtype == torch.bfloat16:
        return left.values @ right.values  # bf16 in and out; the kernel sums in fp32
    left_values = left.values.float()
    right_values = right.values.float()
    result = left_values @ right_values
    # Scales are applied after the product, as on a GPU. Scaling the operands would round them.
    for factor in (left.factor, right.factor):
        if factor is not None:
            result *= factor
    return result.to(dtype)


class AmaxHistory:
    """History of the largest absolute values of one tensor, for delayed scaling.

    `amaxes` is [length]. Entry 0 collects the current largest absolute value, the others are those of the last steps.
    `scale` [] is used now and was computed at the end of the last step. It is 1 before the first step. A step is one
    training forward (or backward) of a micro-batch, as in Transformer Engine.
    """

    def __init__(self, length: int, largest: float) -> None:
        self.largest = largest
        self.amaxes = torch.zeros(length)
        self.scale = torch.ones(())

    @property
    def is_fresh(self) -> bool:
        """True until this tensor's first step of delayed FP8 scaling has ended."""
        has_history = bool(self.amaxes[1:].any())
        return not has_history and float(self.scale) == 1.0

    def record(self, tensor: Tensor) -> None:
        """Include the largest absolute value of a tensor to quantise in the current step of delayed FP8 scaling."""
        amax = largest_absolute(tensor)
        self.amaxes[0] = torch.maximum(self.amaxes[0], amax)

    def end_step(self, amax: Tensor) -> None:
        """End the current step of delayed FP8 scaling, and compute the next scale from the whole amax history.

        `amax` is the step's largest absolute value over all ranks.
        """
        self.amaxes[0] = amax
        # The scale uses the whole history, so that one step of small values does not make the next one overflow.
        highest = self.amaxes.max()
        # The order is Transformer Engine's: entry 0 is the current step, and the oldest step follows it.
        self.amaxes = self.amaxes.roll(-1)
        self.amaxes[0] = 0.0
        # Otherwise the scale stays.
        if highest > 0 and torch.isfinite(highest):
            self.scale = scale_for(highest, self.largest, power_of_two=False)

    def state(self) -> Tensor:
        """Return the state of delayed FP8 scaling for a checkpoint, fp32 [1 + length]: scale, then amax history."""
        return torch.cat([self.scale[None], self.amaxes])

    def load(self, state: Any) -> None:
        """Continue delayed FP8 scaling from the result of `state`.

        An amax history of another length is cut or filled up with zeros.
        """
        self.scale = state[0].clone()
        self.amaxes = torch.zeros_like(self.amaxes)
        self.amaxes[0] = state[1]
        past = state[2:]  # oldest first, in the order that `roll` gives
        num_kept = min(len(past), len(self.amaxes) - 1)
        if num_kept > 0:
            self.amaxes[-num_kept:] = past[-num_kept:]


class ProductPhase(Enum):
    """Purpose of a forward matrix product. Only delayed scaling depends on it."""

    FORWARD = auto()  # training or scoring; after scoring no step ends
    CHECKPOINTED = auto()  # first pass of a training forward that will be recomputed
    RECOMPUTED = auto()


@dataclass(frozen=True)
class Operands:
    """A tensor quantised to FP8 for its two matrix products, both in the layout of the tensor itself."""

    by_row: Quantised  # operand of y or dx
    by_column: Quantised  # operand of dw, which sums over tokens


class LinearRecipe(Protocol):
    """FP8 quantisation of the operands of one linear layer, with the layer's own state."""

    def inputs(self, x: Tensor, w: Tensor, phase: ProductPhase) -> tuple[Operands, Quantised]:
        """Return a linear layer's input and weight quantised to FP8 for a forward pass.

        The quantised weight has equal values in both products that use it, in the forward and in the backward pass.
        """

    def gradient(self, g: Tensor) -> Operands:
        """Return the gradient of a linear layer's output quantised to FP8 for the backward pass."""

    def extra_state(self) -> Tensor | None:
        """Return the scaling state of an FP8 recipe for a checkpoint, or None for a recipe without state."""

    def load_extra_state(self, state: Any) -> None:
        """Continue from the scaling state of an FP8 recipe in a checkpoint.

        With None the recipe starts without an amax history.
        """


@dataclass(frozen=True)
class Formats:
    """FP8 formats of a linear layer. hybrid: e4m3 forward (up to 448), e5m2 for gradients. e4m3: e4m3 for all."""

    forward: Fp8Format
    gradient: Fp8Format


FORMATS = {"hybrid": Formats(E4M3, E5M2), "e4m3": Formats(E4M3, E4M3)}


class _Stateless:
    """Base of recipes whose scales come from the current tensor alone, so that recomputation gives equal results."""

    def __init__(self, formats: Formats) -> None:
        self.formats = formats

    def extra_state(self) -> Tensor | None:
        return None

    def load_extra_state(self, state: Any) -> None:
        return None


class Tensorwise(_Stateless):
    """The recipe `Float8CurrentScaling`: one scale for each tensor, from its current largest number.

    Under tensor parallelism every rank uses the largest number of its own slice, as Transformer Engine does.
    Transformer Engine reduces over the tensor-parallel group only where sequence parallelism gathers a tensor. Here
    such a tensor is quantised after gathering.
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
    """The recipe `Float8BlockScaling`: scales for 1 × 128 numbers of x and g, and for 128 × 128 of w.

    The 128 numbers of x and g lie along the axis that a product sums over.
    """

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
    """The recipe `DelayedScaling`: one scale for each tensor, from the largest number in the steps before this one.

    Everything that is quantised counts for the current step, also in scoring. A step ends with a training forward or
    backward. A recomputed forward uses the scales of the first one and counts for nothing.
    """

    def __init__(self, formats: Formats, history: int) -> None:
        self.formats = formats
        self.x = AmaxHistory(history, formats.forward.largest)
        self.w = AmaxHistory(history, formats.forward.largest)
        self.g = AmaxHistory(history, formats.gradient.largest)
        # Scales of forward passes that will be recomputed. Backward passes come in the order of these.
        self.kept: deque[tuple[Tensor, Tensor]] = deque()

    def inputs(self, x: Tensor, w: Tensor, phase: ProductPhase) -> tuple[Operands, Quantised]:
        if phase is ProductPhase.RECOMPUTED:
            # Other rows may have run between a forward pass and its backward, and may have changed the scales.
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
        """Return the state of delayed FP8 scaling, fp32 [3, 1 + history]: scale and amax history of three tensors.

        The tensors are a linear layer's input, weight and output gradient. All ranks have the same state, because
        amaxes are reduced over the ranks.
        """
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
    """Return a new FP8 recipe for one linear layer, as `policy.fp8` and `policy.fp8_recipe` say.

    The rules of `config/` must have checked both settings.
    """
    assert policy.fp8 is not None, "a recipe is asked for only with policy.fp8"
    formats = FORMATS[policy.fp8]
    if policy.fp8_recipe == "delayed":
        return Delayed(formats, policy.fp8_amax_history)
    if policy.fp8_recipe == "blockwise":
        return Blockwise(formats)
    return Tensorwise(formats)
