"""Trackers of metrics: one that breaks stops neither the others nor the run."""

from collections.abc import Mapping

import pytest

from nemo_brorl.commands.trackers import MetricFan
from tests.support.fakes import ListSink


class BrokenSink:
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        raise OSError("disk full")

    def close(self) -> None:
        raise PermissionError("Operation not permitted")


def test_a_sink_that_breaks_is_dropped_and_the_others_go_on() -> None:
    rows = ListSink()
    fan = MetricFan([BrokenSink(), rows])
    fan.write(1, {"a/b": 1.0})
    fan.write(2, {"a/b": 2.0})
    assert [step for step, _ in rows.rows] == [1, 2]


class RewordingSink(BrokenSink):
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ValueError("try a scalar") from OSError("disk full")


def test_the_warning_of_a_sink_that_breaks_names_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    MetricFan([RewordingSink()]).write(1, {"a/b": 1.0})
    assert caplog.messages == ["metrics no longer go to RewordingSink: disk full"]


class ClosedSink(ListSink):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_sink_that_cannot_be_closed_is_named_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    other = ClosedSink()
    MetricFan([BrokenSink(), other]).close()
    assert caplog.messages == ["the last metrics may not have reached BrokenSink: Operation not permitted"]
    assert other.is_closed
