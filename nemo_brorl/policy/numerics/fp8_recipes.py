"""The three FP8 recipes for the operands of one linear layer: which scale each of its three products uses.

Legend of shapes: x [T, in] input, w [out, in] weight, g [T, out] gradient of the output. The products are
y = x wᵀ, dx = g w and dw = gᵀ x, so x and g are each used once along their rows and once along their columns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import torch
from torch import Tensor

from nemo_brorl.config.schema import PolicyConfig
from nemo_brorl.policy.numerics.quantise import (
    E4M3,
    E5M2,
    TILE,
    AmaxHistory,
    Fp8Format,
    Quantised,
    largest_absolute,
    per_tensor,
    per_tile,
    scale_for,
)


class Phase(Enum):
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

    def inputs(self, x: Tensor, w: Tensor, phase: Phase) -> tuple[Operands, Quantised]:
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

    def inputs(self, x: Tensor, w: Tensor, phase: Phase) -> tuple[Operands, Quantised]:
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

    def inputs(self, x: Tensor, w: Tensor, phase: Phase) -> tuple[Operands, Quantised]:
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

    def inputs(self, x: Tensor, w: Tensor, phase: Phase) -> tuple[Operands, Quantised]:
        if phase is Phase.RECOMPUTED:
            x_scale, w_scale = self.kept.popleft()
        else:
            self.x.record(x)
            self.w.record(w)
            x_scale = self.x.scale
            w_scale = self.w.scale
        if phase is Phase.CHECKPOINTED:
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
