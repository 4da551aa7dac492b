"""The emulated linear layers against a few lines that quantise and dequantise explicitly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nemo_brorl.policy.cpu.fp8_emulation import ChunkEmulation
from nemo_brorl.policy.cpu.fp8_recipes import E4M3, E5M2, TILE, Fp8Format, ProductPhase, make_recipe, per_tile
from tests.support.closeness import share_of_largest
from tests.support.fp8_ranks import emulated_linear
from tests.support.model_factory import make_config
from tests.support.policy_ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.numbers]

T, IN, OUT = 48, 160, 144  # no multiples of a tile

Rounding = Callable[[Tensor], Tensor]


def tensorwise(to: Fp8Format) -> Rounding:
    """fp32 to fp32 through the FP8 type and back, one scale."""

    def rounding(tensor: Tensor) -> Tensor:
        scale = to.largest / tensor.abs().max()
        return (tensor * scale).clamp(-to.largest, to.largest).to(to.dtype).float() / scale

    return rounding


def tilewise(to: Fp8Format, rows: int, columns: int) -> Rounding:
    """The same per tile, in a loop, with powers of two."""

    def rounding(tensor: Tensor) -> Tensor:
        result = torch.empty_like(tensor)
        for top in range(0, tensor.size(0), rows):
            for left in range(0, tensor.size(1), columns):
                tile = (slice(top, top + rows), slice(left, left + columns))
                scale = 2.0 ** torch.floor(torch.log2(to.largest / tensor[tile].abs().max()))
                result[tile] = (tensor[tile] * scale).to(to.dtype).float() / scale
        return result

    return rounding


def reference(
    x: Tensor, w: Tensor, g: Tensor, x_row: Rounding, x_col: Rounding, w_: Rounding, g_row: Rounding, g_col: Rounding
) -> tuple:
    """y, dx, dw in fp32."""
    return x_row(x) @ w_(w).t(), g_row(g) @ w_(w), g_col(g).t() @ x_col(x)


def tensors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(shape, generator=generator) for shape in ((T, IN), (OUT, IN), (T, OUT)))
    return x.to(dtype), (0.05 * w).to(dtype), (1e-3 * g).to(dtype)


@pytest.mark.parametrize("fp8", ["hybrid", "e4m3"])
@pytest.mark.parametrize("recipe", ["tensorwise", "blockwise"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forward_and_both_gradients_are_those_of_quantised_operands(precision: str, recipe: str, fp8: str) -> None:
    x, w, g = tensors(torch.float32 if precision == "fp32" else torch.bfloat16)
    back = E5M2 if fp8 == "hybrid" else E4M3
    if recipe == "tensorwise":
        roundings = [tensorwise(E4M3)] * 3 + [tensorwise(back)] * 2
    else:
        roundings = [
            tilewise(E4M3, 1, TILE),
            tilewise(E4M3, TILE, 1),
            tilewise(E4M3, TILE, TILE),
            tilewise(back, 1, TILE),
        ]
        roundings.append(tilewise(back, TILE, 1))
    expected = reference(x.float(), w.float(), g.float(), *roundings)
    config = make_config(fp8=fp8, fp8_recipe=recipe, precision=precision)
    (found,) = run_ranks(config, emulated_linear, config, "column", x, w, g)
    # Of the largest. Sums of products in fp32, in another order, are off by some units of 2^-23. In bf16 each result is
    # rounded once, by up to half a unit, which is 2^-8: that is reached, and nothing goes beyond it.
    tolerance = 4e-6 if precision == "fp32" else 2**-8
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == x.dtype
        assert share_of_largest(own.float(), other) <= tolerance


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["TP2", "TP2 with sequence parallelism"])
@pytest.mark.parametrize("kind", ["column", "row"])
def test_tensor_parallel_ranks_together_are_one_rank_except_for_scales_of_slices(
    kind: str, sequence_parallel: bool
) -> None:
    """Blockwise scales do not see the cut, where it lies between tiles. Tensorwise, a slice has its own largest
    number."""
    x, w, g = (tensor.repeat(1, 2)[:, :256] for tensor in tensors(torch.float32))
    w = torch.cat([w, w])[:256]
    layout = {"tensor_model_parallel_size": 2, "sequence_parallel": sequence_parallel}
    for recipe, tolerance in (("blockwise", 1e-6), ("tensorwise", 2**-3)):  # half a step of e5m2
        one, two = (make_config(fp8="hybrid", fp8_recipe=recipe, **more) for more in ({}, layout))
        (whole,) = run_ranks(one, emulated_linear, one, kind, x, w, g)
        ranks = run_ranks(two, emulated_linear, two, kind, x, w, g)
        y_cut, x_cut, w_cut = (1, 0, 0) if kind == "column" else (0, 1, 1)
        if not sequence_parallel:  # what is not cut over features is whole on both ranks
            y_cut, x_cut = (1, None) if kind == "column" else (None, 1)
        for index, cut in enumerate((y_cut, x_cut, w_cut)):
            joined = ranks[0][index] if cut is None else torch.cat([rank[index] for rank in ranks], dim=cut)
            assert share_of_largest(joined, whole[index]) <= tolerance


def test_a_delayed_step_uses_old_scales_and_a_recomputed_forward_those_of_the_first() -> None:
    recipe = make_recipe(make_config(fp8="hybrid", fp8_recipe="delayed", fp8_amax_history=2).policy)
    x, w = torch.tensor([[2.0, -0.3]]), torch.tensor([[4.0, 1.0]])
    first, _ = recipe.inputs(x, w, ProductPhase.CHECKPOINTED)
    assert first.by_row.values.tolist() == [[2.0, -0.3125]]  # scale 1
    recipe.x.end_step(recipe.x.amaxes[0])
    recipe.w.end_step(recipe.w.amaxes[0])
    second, weight = recipe.inputs(3 * x, w, ProductPhase.CHECKPOINTED)
    assert second.by_row.values.tolist() == [[448.0, -208.0]]  # scale 224: 1344 saturates, -201.6 -> -208
    assert weight.values.tolist() == [[448.0, 112.0]]
    recorded = recipe.x.amaxes.clone()
    for again, then in ((x, first), (3 * x, second)):  # backward passes come in the order of the forward passes
        assert torch.equal(recipe.inputs(again, w, ProductPhase.RECOMPUTED)[0].by_row.values, then.by_row.values)
    assert torch.equal(recipe.x.amaxes, recorded)


def test_an_expert_without_tokens_gets_a_gradient_of_zeros() -> None:
    for name in ("tensorwise", "delayed", "blockwise"):
        recipe = make_recipe(make_config(fp8="hybrid", fp8_recipe=name).policy)
        operands, weight = recipe.inputs(torch.empty(0, 4), torch.ones(3, 4), ProductPhase.FORWARD)
        assert (operands.by_row.values @ weight.values.t()).shape == (0, 3)
        gradient = recipe.gradient(torch.empty(0, 3))
        assert torch.equal((gradient.by_column.values.t() @ operands.by_column.values).float(), torch.zeros(3, 4))


def test_the_tiles_of_a_weight_do_not_depend_on_the_direction() -> None:
    w = tensors(torch.float32)[1]
    assert torch.equal(per_tile(w, E4M3, TILE, TILE).values.t(), per_tile(w.t(), E4M3, TILE, TILE).values)


def test_phases_follow_from_where_gradients_are_on() -> None:
    block, chunk, seen = torch.nn.Linear(1, 1), ChunkEmulation(), []
    chunk.attach(block)
    block.register_forward_pre_hook(lambda *_: seen.append(chunk.enter(block)))
    x = torch.ones(1, 1)
    block(x)
    with torch.no_grad():
        block(x)
    checkpointed = torch.nn.Sequential()
    chunk = ChunkEmulation()
    chunk.attach(checkpointed)

    def part(x: Tensor) -> Tensor:
        seen.append(chunk.enter(block))
        return 2 * x

    checkpointed.append(_Checkpointed(part))
    checkpointed(x.requires_grad_()).sum().backward()
    assert seen == [ProductPhase.FORWARD, ProductPhase.FORWARD, ProductPhase.CHECKPOINTED, ProductPhase.RECOMPUTED]


class _Checkpointed(torch.nn.Module):
    def __init__(self, part: Rounding) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x, use_reentrant=True)
