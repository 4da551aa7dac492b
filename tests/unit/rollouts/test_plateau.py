"""The plateau detector: lines worked by hand, and its error rates on synthetic curves."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.rollouts.plateau import PlateauDetector, trend

CONFIG = PlateauConfig()
FOUND_WITHIN = CONFIG.window - 1 + CONFIG.patience  # validations of a curve that never rises, without lucky windows
NUM_CURVES = 300
NOISE = 0.01


def first_alarm(scores: np.ndarray) -> int | None:
    """Validations seen when a plateau is declared, or None."""
    detector = PlateauDetector(CONFIG)
    return next((index + 1 for index, score in enumerate(scores) if detector.observe(float(score)) is not None), None)


def alarms(curve: np.ndarray, noise: float) -> list[int | None]:
    random = np.random.default_rng(0)
    return [first_alarm(curve + noise * random.normal(size=len(curve))) for _ in range(NUM_CURVES)]


def test_a_line_worked_by_hand() -> None:
    # 0, 1, 2, 5: x = −1.5 … 1.5, Σx² = 5, Σxy = −.5 + 1 + 7.5 = 8 → 1.6; residuals .4, −.2, −.8, .6 → Σ = 1.2; √(1.2 /
    # 2 / 5)
    found = trend([0, 1, 2, 5], PlateauConfig(confidence=0.5))
    assert (found.slope, found.error) == (pytest.approx(1.6), pytest.approx(np.sqrt(0.12)))
    assert (found.low, found.high) == pytest.approx((1.6, 1.6)), "half confidence asks for no margin"
    assert not found.has_stalled


def test_an_exact_rise_never_alarms_and_an_exact_flat_line_always_does() -> None:
    assert first_alarm(np.linspace(0.2, 0.9, 60)) is None
    for score in (0.3, 0.4, 0.6, 0.7):
        assert first_alarm(np.full(60, score)) == FOUND_WITHIN


def test_false_alarms_on_rising_curves_are_at_most_five_percent() -> None:
    rising = np.linspace(0.3, 0.8, 40)  # 1.3 points a validation at a noise of 1
    assert sum(alarm is not None for alarm in alarms(rising, NOISE)) <= 0.05 * NUM_CURVES


@pytest.mark.parametrize("slope", [0.0, -0.005], ids=["flat", "degrading"])
def test_curves_that_do_not_rise_are_found_within_the_stated_patience(slope: float) -> None:
    found = alarms(0.5 + slope * np.arange(60), NOISE)
    assert all(alarm is not None for alarm in found)
    # a lucky window of noise starts the count again: at 95 % confidence in about a tenth of flat curves
    assert sum(alarm == FOUND_WITHIN for alarm in found) >= 0.85 * NUM_CURVES


def test_a_saturating_curve_is_found_after_its_knee() -> None:
    curve = 0.5 * (1 - np.exp(-np.arange(60) / 5.0))
    found = alarms(curve, 0.005)
    assert min(alarm for alarm in found if alarm is not None) > 12
    assert sum(alarm is not None and alarm < 50 for alarm in found) >= 0.95 * NUM_CURVES


def test_a_larger_wanted_gain_calls_a_slow_rise_a_plateau() -> None:
    slow = [0.001 * step for step in range(20)]
    detector = PlateauDetector(PlateauConfig(window=6, min_gain=0.002))
    reasons = [detector.observe(score) for score in slow]
    assert reasons[:7] == [None] * 7
    assert reasons[7] == (
        "stalled for 3 validations in a row: slope +0.0010 per validation, from +0.0010 to +0.0010: below +0.0020 over "
        "the last 6"
    )


@pytest.mark.parametrize(("slope", "least", "most"), [(0.0, 0.95, 1.0), (0.5, 0.0, 0.01), (0.25, 0.0, 0.05)])
def test_a_plateau_is_seldom_called_on_a_curve_that_rises(slope: float, least: float, most: float) -> None:
    found = alarms(slope * NOISE * np.arange(40), NOISE)
    share = sum(alarm is not None for alarm in found) / NUM_CURVES
    error = 3 * (0.05 * 0.95 / NUM_CURVES) ** 0.5
    assert least - error <= share <= most + error


def test_a_rise_above_the_smallest_gain_is_not_called_a_plateau_for_its_noise() -> None:
    random = np.random.default_rng(0)
    calls = 0
    for _ in range(NUM_CURVES):
        detector = PlateauDetector(PlateauConfig(min_gain=0.001))
        scores = 0.002 * np.arange(30) + NOISE * random.normal(size=30)  # a fifth of the noise in each validation
        calls += any(detector.observe(float(score)) is not None for score in scores)
    assert calls <= 0.05 * NUM_CURVES


def test_the_count_survives_a_restart_and_a_reset_clears_it() -> None:
    scores = [0.4, 0.41, 0.39, 0.4, 0.4, 0.41, 0.4, 0.41, 0.39, 0.4, 0.4, 0.41, 0.4, 0.4, 0.41, 0.4, 0.4]
    whole, first = PlateauDetector(CONFIG), PlateauDetector(CONFIG)
    for score in scores:
        assert whole.observe(score) is None
        assert first.observe(score) is None
    second = PlateauDetector(CONFIG)
    second.load_state_dict(first.state_dict())
    assert second.observe(0.4) == whole.observe(0.4) != None  # noqa: E711 - both give the same reason
    whole.reset()
    assert whole.observe(0.4) is None


def test_a_missing_score_is_no_validation() -> None:
    assert first_alarm(np.array([0.4, np.nan, *[0.4] * 20])) == FOUND_WITHIN + 1
