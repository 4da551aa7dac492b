"""Worked sums: right without habits, and wrong exactly as the habits say."""

from __future__ import annotations

from random import Random

from brorl_lab.bases.demonstrations import Habits, add_carelessly, work_out

CAREFUL = Habits(dropped_carry_rate=0.0, slip_rate=0.0)
FORGETFUL = Habits(dropped_carry_rate=1.0, slip_rate=0.0)


def test_a_careful_pupil_writes_every_step_and_is_right() -> None:
    worked = work_out("17 + 25 - 8 - 99", CAREFUL, Random(1))
    assert worked.steps == "17+25=42-8=34-99=-65"
    assert worked.result == -65


def test_a_careful_pupil_adds_and_subtracts_any_two_numbers() -> None:
    random = Random(2)
    for _ in range(500):
        value = random.randint(-2000, 2000)
        change = random.randint(-2000, 2000)
        assert add_carelessly(value, change, CAREFUL, random) == value + change


def test_a_forgotten_carry_is_missing_in_the_next_column() -> None:
    assert add_carelessly(17, 25, FORGETFUL, Random(1)) == 32  # 7 + 5 = 12: write 2, forget 1
    assert add_carelessly(95, 17, FORGETFUL, Random(1)) == 2  # both carries: 12 without its hundred and its ten
    assert add_carelessly(42, 15, FORGETFUL, Random(1)) == 57  # no carry to forget


def test_a_forgotten_borrowed_ten_leaves_the_next_column_too_large() -> None:
    assert add_carelessly(42, -8, FORGETFUL, Random(1)) == 44  # 12 - 8 = 4, and 4 stays 4
    assert add_carelessly(8, -42, FORGETFUL, Random(1)) == -44


def test_an_error_is_carried_on_to_the_next_step() -> None:
    worked = work_out("17 + 25 + 10", FORGETFUL, Random(1))
    assert worked.steps == "17+25=32+10=42"
    assert worked.result == 42


def test_the_rate_of_right_sums_falls_by_the_power_of_their_carries() -> None:
    habits = Habits(dropped_carry_rate=0.6, slip_rate=0.1)
    random = Random(3)
    num_right = sum(work_out("19 + 19 + 19", habits, random).result == 57 for _ in range(4000))
    expected = (0.4 * 0.9) ** 2  # 9 + 9 and 8 + 9 carry; two wrong steps never make it right again: 28 + 19, 38 + 19
    assert abs(num_right / 4000 - expected) < 0.02  # three standard deviations are 0.016


def test_the_same_draws_make_the_same_sum() -> None:
    habits = Habits(dropped_carry_rate=0.5, slip_rate=0.5)
    assert work_out("88 + 77 - 66", habits, Random(4)) == work_out("88 + 77 - 66", habits, Random(4))
