"""FP8 quantisation against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from nemo_brorl.policy.cpu.fp8_recipes import (
    E4M3,
    E5M2,
    AmaxHistory,
    largest_absolute,
    per_tensor,
    per_tile,
    product,
    round_to,
    scale_for,
)

pytestmark = pytest.mark.numbers

INF, NAN = float("inf"), float("nan")


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_e4m3_has_four_significant_bits_and_ties_go_to_even() -> None:
    # between 16 and 32 the numbers are 16, 18, 20, ...
    assert round_to(numbers(16.9, 17, 17.1, 19, 21, -19), E4M3).tolist() == [16, 16, 18, 20, 20, -20]


def test_e5m2_has_three_significant_bits() -> None:
    # between 16 and 32 the numbers are 16, 20, 24, 28
    assert round_to(numbers(17.9, 18, 18.1, 22, 26), E5M2).tolist() == [16, 16, 20, 24, 24]


def test_numbers_beyond_the_format_saturate_and_nan_stays() -> None:
    values = numbers(463, 470, 1e9, -1e9, INF, -INF)
    assert round_to(values, E4M3).tolist() == [448, 448, 448, -448, 448, -448]
    assert round_to(values * 1000, E5M2).tolist() == [57344, 57344, 57344, -57344, 57344, -57344]
    assert round_to(numbers(NAN), E4M3).isnan().all()
    assert round_to(numbers(NAN), E5M2).isnan().all()


def test_subnormals_are_steps_of_the_smallest_number() -> None:
    # e4m3: multiples of 2^-9 below 2^-6; half of one rounds to zero, one and a half to two
    step = 2.0**-9
    assert round_to(numbers(step, step / 2, 1.5 * step, 7 * step), E4M3).tolist() == [step, 0, 2 * step, 7 * step]
    step = 2.0**-16
    assert round_to(numbers(step, step / 2, 1.5 * step, 3 * step), E5M2).tolist() == [step, 0, 2 * step, 3 * step]


def test_the_relative_error_of_normal_numbers_is_half_a_step() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).abs() + 0.02
    assert ((round_to(values, E4M3) - values).abs() / values).max() <= 2**-4
    assert ((round_to(values, E5M2) - values).abs() / values).max() <= 2**-3


def test_scales_bring_the_largest_number_to_the_largest_of_the_format() -> None:
    amax = numbers(2, 448, 0, INF, NAN, 1e-38)
    assert scale_for(amax, 448, power_of_two=False).tolist() == [224, 1, 1, 1, 1, torch.finfo(torch.float32).max]
    assert scale_for(numbers(2, 448, 449, 0, 3), 448, power_of_two=True).tolist() == [128, 1, 0.5, 1, 128]


def test_a_tensor_is_quantised_with_one_scale() -> None:
    tensor = numbers(1, 0.3, -2, 0.001, 0)
    quantised = per_tensor(tensor, E4M3, scale_for(largest_absolute(tensor), 448, power_of_two=False))
    # scale 224: 224, 67.2 -> 64 (steps of 8), -448, 0.224 -> 14 / 64 (steps of 1 / 64), 0
    assert quantised.values.tolist() == [224, 64, -448, 0.21875, 0]
    assert quantised.dequantised.tolist() == (numbers(224, 64, -448, 0.21875, 0) * numbers(224).reciprocal()).tolist()


def test_a_tensor_of_zeros_stays_and_an_empty_one_has_no_largest_number() -> None:
    zeros = per_tile(torch.zeros(4, 4), E4M3, 1, 2)
    assert zeros.dequantised.tolist() == torch.zeros(4, 4).tolist()
    assert float(largest_absolute(torch.empty(0, 4))) == 0.0
    assert per_tile(torch.empty(0, 4), E4M3, 1, 2).values.shape == (0, 4)


def test_every_tile_has_a_power_of_two_of_its_own() -> None:
    # by row, tiles of 1 x 2: amax 1 and 1000 -> 448, 0.448 -> 256 and 0.25
    matrix = torch.tensor([[1.0, 0.3, 1000.0, 30.0]])
    # 0.3 * 256 = 76.8 -> 80 (steps of 8); 1000 / 4 = 250 -> 256 (steps of 16); 30 / 4 = 7.5
    assert per_tile(matrix, E4M3, 1, 2).values.tolist() == [[1.0, 0.3125, 1024.0, 30.0]]


def test_tiles_at_the_end_may_be_smaller_and_columns_are_rows_of_the_transposed() -> None:
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    by_row, by_column = per_tile(matrix, E4M3, 1, 3), per_tile(matrix.t(), E4M3, 3, 1)
    assert torch.equal(by_row.values, by_column.values.t())
    alone = per_tile(matrix[:, 6:], E4M3, 1, 3)
    assert torch.equal(by_row.values[:, 6:], alone.values)


def test_a_product_sums_exact_products_and_applies_the_scales_last() -> None:
    left = per_tensor(torch.tensor([[1.0, 2.0]]), E4M3, torch.tensor(128.0))
    right = per_tensor(torch.tensor([[3.0], [4.0]]), E5M2, torch.tensor(2.0))
    assert product(left, right, torch.float32).tolist() == [[11.0]]  # (128 * 6 + 256 * 8) / 128 / 2
    tiles = per_tile(torch.tensor([[1.0, 2.0]]), E4M3, 1, 2)
    assert product(tiles, tiles.transposed(), torch.bfloat16).tolist() == [[5.0]]


def test_delayed_scaling_uses_the_largest_of_the_last_steps() -> None:
    history = AmaxHistory(length=3, largest=448.0)
    scales = []
    for amax in (2.0, 8.0, 1.0, 1.0, 1.0):
        history.record(numbers(-amax, amax / 2))
        scales.append(float(history.scale))  # what this step is quantised with
        history.end_step(history.amaxes[0])
    # before anything 1, then 448 over the largest of 2; 2 8; 2 8 1; 8 1 1
    assert scales == [1, 224, 56, 56, 56]
    assert float(history.scale) == 448  # 1 1 1
    assert history.amaxes.tolist() == [0, 1, 1]


def test_passes_without_a_step_count_towards_the_next_one_and_a_step_of_zeros_keeps_the_scale() -> None:
    history = AmaxHistory(length=1, largest=448.0)
    history.record(numbers(4))
    history.record(numbers(1))
    history.end_step(history.amaxes[0])
    assert float(history.scale) == 112
    history.end_step(numbers(0)[0])
    assert float(history.scale) == 112


def test_a_history_goes_on_from_its_state_and_a_longer_one_takes_it_over() -> None:
    history = AmaxHistory(length=3, largest=448.0)
    for amax in (2.0, 8.0, 1.0):
        history.end_step(torch.tensor(amax))
    history.record(numbers(5))
    same, longer, shorter = (AmaxHistory(length, 448.0) for length in (3, 5, 2))
    for other in (same, longer, shorter):
        other.load(history.state())
        assert float(other.scale) == 56
    assert same.amaxes.tolist() == history.amaxes.tolist() == [5, 8, 1]
    assert longer.amaxes.tolist() == [5, 0, 0, 8, 1]
    assert shorter.amaxes.tolist() == [5, 1]
