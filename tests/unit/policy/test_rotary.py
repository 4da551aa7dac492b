"""Rotation by position, worked by hand and against the textbook formula, and what it keeps of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.model_shape import Rope
from nemo_brorl.policy.model.rotary import _rotated, inverse_frequencies, rotate, rotated_at_once, rotation_table
from tests.support.model_factory import make_config

pytestmark = pytest.mark.numbers


def test_a_quarter_turn_swaps_the_halves_of_a_head() -> None:
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    table = torch.tensor([[9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 1.0, 1.0]])  # position 1: cosine 0, sine 1
    assert rotate(heads, table, torch.tensor([1])).flatten().tolist() == [-3.0, -4.0, 1.0, 2.0]


def test_it_is_x_cos_plus_rotated_half_x_sin_with_its_gradient() -> None:
    torch.manual_seed(0)
    angles = torch.randn(7, 3, dtype=torch.float64)
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.tensor([6, 0, 3, 3, 1])
    heads = torch.randn(5, 2, 6, dtype=torch.float64, requires_grad=True)
    twice = torch.cat([angles, angles], -1)[positions][:, None]
    first, second = heads.chunk(2, -1)
    expected = heads * twice.cos() + torch.cat([-second, first], -1) * twice.sin()
    torch.testing.assert_close(rotate(heads, table, positions), expected)
    assert torch.autograd.gradcheck(lambda tensor: rotate(tensor, table, positions), heads)


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_what_gpus_compile_turns_heads_as_the_steps_in_place_do(direction: float) -> None:
    torch.manual_seed(0)
    heads = torch.randn(5, 2, 6, dtype=torch.float64)
    table = torch.randn(7, 6, dtype=torch.float64)
    positions = torch.tensor([6, 0, 3, 3, 1])
    expected = _rotated(heads, table, positions, direction)
    torch.testing.assert_close(rotated_at_once(heads, table, positions, direction), expected)
    in_bf16 = rotated_at_once(heads.bfloat16(), table.bfloat16(), positions, direction)
    assert in_bf16.is_contiguous()
    torch.testing.assert_close(in_bf16, expected.bfloat16(), rtol=2e-2, atol=2e-2)


def test_the_table_has_the_angles_of_every_position() -> None:
    table = rotation_table(3, torch.tensor([1.0, 0.5]), torch.float32)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]])
    torch.testing.assert_close(table, torch.cat([angles.cos(), angles.sin()], dim=1))


def test_a_factor_multiplies_what_rotates_and_nothing_else() -> None:
    table = rotation_table(2, torch.tensor([1.0, 0.0]), torch.float64, factor=1.5)
    assert table[1].tolist() == pytest.approx([1.5 * math.cos(1), 1.0, 1.5 * math.sin(1), 0.0])


def test_a_half_that_does_not_rotate_has_frequencies_of_zero() -> None:
    rope = Rope(100.0, rotated_share=0.5)
    assert inverse_frequencies(rope, 8).tolist() == pytest.approx([1.0, 0.1, 0.0, 0.0])


def tensors_of(row: Any) -> list[Tensor]:
    """Every tensor that a row and its packing hold."""
    values = [*vars(row).values(), *vars(row.packing).values(), *row.packing.caches.values()]
    return [value for value in values if isinstance(value, Tensor)]


def test_rows_that_were_scored_hold_integers_and_one_table_for_all(
    new_learner: Callable[[Path, BroRLConfig], Any], model_folder: Path
) -> None:
    """Cosines and sines of its own would be 8 · D / 2 bytes a token: 8.4 MB for 16,384 tokens of D = 128."""
    from nemo_brorl.policy.rank.pipeline import score_rows
    from tests.unit.policy.test_learner import make_packed_groups

    state = new_learner(model_folder, make_config()).state
    rows = state.rows([make_packed_groups(8), make_packed_groups(8), make_packed_groups(8)], 1.0)
    num_before = [sum(tensor.nbytes for tensor in tensors_of(row)) for row in rows]
    score_rows(state.chunks, rows)
    tables = {row.packing.rotation.data_ptr() for row in rows}
    num_after = [sum(tensor.nbytes for tensor in tensors_of(row)) for row in rows]
    assert len(tables) == 1
    for before, after, row in zip(num_before, num_after, rows, strict=True):
        assert after - before == row.packing.rotation.nbytes
