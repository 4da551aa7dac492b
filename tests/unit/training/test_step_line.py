"""The line of a step fits a narrow screen and says when the run ends."""

from __future__ import annotations

import pytest

from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.step_time import Pace
from nemo_brorl.training.run_observers import StepLine
from nemo_brorl.training.tables import clock_time, step_line

METRICS = {
    "reward/mean": 0.196,
    "dynamic_sampling/keep_rate": 0.82,
    "policy/kl_to_reference": 0.0171,
    "policy/log_prob_mismatch": 3e-7,
    "time/generate_s": 18.0,
    "time/reward_s": 2.0,
    "time/log_prob_s": 2.25,
    "time/update_s": 4.0,
}


def test_a_step_has_its_reward_its_seconds_and_the_time_that_is_left() -> None:
    expected = "step 1/20  reward 0.196  informative 82%  KL 0.0171  20 + 6.2 s  left 6:40"
    assert step_line(1, 20, METRICS, 400.0) == expected


def test_a_step_with_a_teacher_shows_the_kl_to_it() -> None:
    assert "  KL 0.5000  " in step_line(1, 20, {**METRICS, "policy/kl_to_teacher": 0.5}, 400.0)


@pytest.mark.parametrize(
    ("step", "steps", "reward", "seconds"), [(1, 20, 0.1, 1.0), (9_999, 10_000, -1234.5, 40_000.0)]
)
def test_the_line_fits_eighty_columns(step: int, steps: int, reward: float, seconds: float) -> None:
    metrics = {**METRICS, "reward/mean": reward, "time/generate_s": seconds, "time/update_s": seconds}
    assert len(step_line(step, steps, metrics, 360_000.0)) <= 80


def test_the_last_step_has_nothing_left() -> None:
    assert "left" not in step_line(20, 20, METRICS, 0.0)


def test_hours_are_shown_when_there_are_some() -> None:
    assert [clock_time(seconds) for seconds in (0.4, 59.6, 400, 7_600)] == ["0:00", "1:00", "6:40", "2:06:40"]


def test_the_pace_is_that_of_the_last_ten_steps() -> None:
    pace = Pace(0.0)
    assert pace.step_ended(100.0) == 100.0
    for number in range(1, 10):
        assert pace.step_ended(100.0 + 10 * number) == pytest.approx((100 + 10 * number) / (number + 1))
    assert pace.step_ended(200.0) == pytest.approx(10.0), "the slow first step is forgotten"


def test_the_first_step_corrects_what_was_expected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("nemo_brorl.training.run_observers.time.monotonic", lambda: clock[0])
    observer = StepLine(Console(), 20, ParityConfig())
    observer.expected_s = 19.0
    observer.step_begins(0)
    clock[0] = 50.0
    observer.step_begins(1)
    clock[0] = 81.0
    observer.row_complete(1, METRICS)
    clock[0] = 112.0
    observer.row_complete(2, METRICS)
    printed = capsys.readouterr().out
    assert printed.count("expected about 19 s for a step, took 31 s") == 1
    assert f"left {clock_time(19 * 31)}\n" in printed
    assert f"left {clock_time(18 * 31)}\n" in printed
