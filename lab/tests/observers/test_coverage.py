"""The warning where pass@1 is bought with pass@k."""

from __future__ import annotations

import pytest
from brorl_lab.observers.coverage import Coverage, CoverageParams

from nemo_brorl.types import ScoredGroup
from tests.support.fakes import make_group


def step(right_of_four: list[int]) -> list[ScoredGroup]:
    return [make_group([1.0] * num + [0.0] * (4 - num)) for num in right_of_four]


BROAD = [1, 1, 1, 1]  # pass@1 1/4, pass@4 1
NARROW = [4, 4, 0, 0]  # pass@1 1/2, pass@4 1/2


def test_a_warning_comes_once_when_pass_at_1_was_bought_with_pass_at_k(caplog: pytest.LogCaptureFixture) -> None:
    watch = Coverage(CoverageParams(window=2, max_fall=0.1))
    for counts in (BROAD, BROAD, BROAD):
        watch.record_groups(step(counts))
    assert watch.changes() == {}, "one newer step is too few"
    for counts in (NARROW, NARROW, NARROW):
        watch.record_groups(step(counts))
    assert watch.changes() == pytest.approx({"rollouts/pass_at_1_change": 0.25, "rollouts/pass_at_n_change": -0.5})
    assert caplog.text.count("pass@4 has fallen by 0.500") == 1


@pytest.mark.parametrize(
    ("later", "max_fall"),
    [(BROAD, 0.1), (NARROW, None), (NARROW, 0.6), ([2, 2, 2, 2], 0.1), ([0, 0, 0, 1], 0.1)],
)
def test_no_warning_without_a_rise_or_within_the_limit(later: list[int], max_fall: float | None) -> None:
    watch = Coverage(CoverageParams(window=2, max_fall=max_fall))
    for counts in (BROAD, BROAD, later, later):
        watch.record_groups(step(counts))
    assert not watch.is_warned


def test_it_begins_anew_with_another_n_and_survives_a_restart() -> None:
    watch = Coverage(CoverageParams(window=2))
    watch.record_groups(step(BROAD))
    again = Coverage(CoverageParams(window=2))
    again.resume(1, watch.state_dict())
    assert again.state_dict() == watch.state_dict()
    again.record_groups([make_group([1.0] * 8)])
    assert (again.k, again.first) == (8, [[1.0, 1.0]])
