"""When the reference is reset: on schedule, when KL takes over, when validation stalls, and never twice."""

import math

import pytest

from nemo_brorl.algorithm.reference_reset import ReferenceResets, Reset
from nemo_brorl.config.algorithm import ReferenceResetConfig


def steps_with_reset(resets: ReferenceResets, num: int, kl: float = 0.0) -> list[int]:
    found = []
    for step in range(1, num + 1):
        if resets.due(step, {"policy/kl_to_reference": kl}):
            resets.note_reset(step)
            found.append(step)
    return found


def test_the_schedule_is_every_interval_steps() -> None:
    assert steps_with_reset(ReferenceResets(ReferenceResetConfig(interval=3)), 10) == [3, 6, 9]


def test_by_default_nothing_resets() -> None:
    resets = ReferenceResets(ReferenceResetConfig())
    for _ in range(9):
        resets.note_validation(0.5)
    assert steps_with_reset(resets, 50, kl=100.0) == []
    assert resets.metrics(50) == {}


@pytest.mark.parametrize(
    ("kl", "is_due"), [(0.19, False), (0.2, False), (0.21, True), (math.inf, True), (math.nan, False)]
)
def test_kl_resets_above_its_bound_and_nan_never_does(kl: float, is_due: bool) -> None:
    reset = ReferenceResets(ReferenceResetConfig(kl_above=0.2)).due(1, {"policy/kl_to_reference": kl})
    assert reset == (Reset("kl_above", kl) if is_due else None)


def test_a_step_without_a_kl_term_does_not_reset() -> None:
    assert ReferenceResets(ReferenceResetConfig(kl_above=0.2)).due(1, {}) is None


def test_validation_stalls_after_patience_without_a_new_best_and_counts_anew_after_a_reset() -> None:
    resets = ReferenceResets(ReferenceResetConfig(patience=2))
    outcomes = []
    for step, pass_at_1 in enumerate([0.3, 0.4, 0.4, 0.39, 0.38, 0.41, 0.2, 0.2], start=1):
        resets.note_validation(pass_at_1)
        reset = resets.due(step, {})
        outcomes.append(None if reset is None else reset.value)
        if reset:
            resets.note_reset(step)
    # best 0.4 at step 2; 3 and 4 stall: reset. 5 is one stalled; 6 a new best; 7 and 8 stall: reset.
    assert outcomes == [None, None, None, 2.0, None, None, None, 2.0]


def test_a_reset_is_not_repeated_after_a_resume() -> None:
    resets = ReferenceResets(ReferenceResetConfig(interval=3, patience=1))
    resets.note_validation(0.5)
    resets.note_validation(0.5)
    assert resets.due(3, {}) == Reset("patience", 1.0)
    resets.note_reset(3)
    resumed = ReferenceResets(ReferenceResetConfig(interval=3, patience=1))
    resumed.load_state_dict(resets.state_dict())
    assert resumed.due(4, {}) is None
    assert resumed.metrics(4) == {"reference/resets": 1.0, "reference/steps_since_reset": 1.0}


def test_the_value_of_a_scheduled_reset_is_the_steps_since_the_last_one() -> None:
    resets = ReferenceResets(ReferenceResetConfig(interval=4, kl_above=1.0))
    assert resets.due(3, {"policy/kl_to_reference": 2.0}) == Reset("kl_above", 2.0)
    resets.note_reset(3)
    assert resets.due(4, {}) == Reset("interval", 1.0)
    assert str(Reset("kl_above", 0.25)) == "0.25 nats per token"
