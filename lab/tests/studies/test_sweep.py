"""A sweep over N: curves from metrics files, read off at equal samples and equal training time."""

from pathlib import Path

import pytest

from lab.studies.figures.sweep import SizeRun, draw_sweep, sweep_tables

STEP = {
    "generation/num_samples": 100.0,
    "time/collect_s": 4.0,
    "time/generate_s": 3.0,
    "time/reward_s": 0.5,
    "time/update_s": 6.0,
}


def validation(pass_at_1: float) -> dict[str, float]:
    return {"validation/pass_at_1": pass_at_1, "validation/pass_at_1_standard_error": 0.1, "validation/pass_at_16": 0.5,
            "time/validate_s": 50.0}  # fmt: skip


def run(size: int, seed: int, scores: list[float], seconds: float = 6.0) -> SizeRun:
    """A validation before training and after each step."""
    rows = [validation(scores[0])] + [STEP | {"time/update_s": seconds} | validation(score) for score in scores[1:]]
    return SizeRun.from_rows(size, seed, rows)


def test_samples_and_training_time_are_summed_without_validations_and_without_counting_a_stage_twice() -> None:
    curve = run(16, 1, [0.2, 0.3, 0.5])
    assert curve.samples.tolist() == [0, 100, 200]
    assert curve.seconds.tolist() == [0, 10, 20]  # collect and update; generate and reward are parts of collect
    assert sorted(curve.scores) == ["pass@1", "pass@16"]


def test_rates_measured_elsewhere_take_the_place_of_a_runs_own_times() -> None:
    rows = [validation(0.2), STEP | validation(0.3)]
    assert SizeRun.from_rows(16, 1, rows, rate=(50.0, 1.5)).seconds.tolist() == [0, 3.5]  # 100 / 50 + 1.5


def test_a_score_between_two_validations_lies_on_the_line_between_them() -> None:
    assert run(16, 1, [0.2, 0.3, 0.5]).score_at("pass@1", "samples", 150) == pytest.approx(0.4)


def test_runs_are_compared_at_what_all_have_reached() -> None:
    runs = [
        run(16, 1, [0.2, 0.4], seconds=16.0),
        run(16, 2, [0.2, 0.6], seconds=16.0),
        run(512, 1, [0.2, 0.3, 0.4, 0.5]),
    ]
    tables = sweep_tables(runs)
    assert list(tables) == ["at 100 samples", "after 20 s of training", "per step"]
    equal_samples, equal_time = tables["at 100 samples"][1], tables["after 20 s of training"][1]
    assert equal_samples[0][:2] == ["N = 16", "50.0 ± 10.0"]  # 40 and 60
    assert equal_samples[1][1].startswith("30.0")
    assert equal_time[1][1].startswith("40.0")  # 20 s are two steps of 10 s


def test_figures_are_drawn(tmp_path: Path) -> None:
    draw_sweep([run(16, 1, [0.2, 0.4]), run(512, 1, [0.2, 0.3, 0.4])], tmp_path / "arm.png")
    assert (tmp_path / "arm.png").stat().st_size > 1000
    assert (tmp_path / "arm_steps.png").exists()
