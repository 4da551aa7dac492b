"""Metrics on disk."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from nemo_brorl.core.metric_sinks import JsonlSink, MetricFan, read_metrics
from tests.support.fakes import ListSink


class BrokenSink:
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        raise OSError("disk full")

    def close(self) -> None:
        raise PermissionError("Operation not permitted")


def test_rows_are_flat_objects_and_nan_is_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", resume_step=None)
    sink.write(1, {"reward/mean": 0.5, "dynamic_sampling/keep_rate": math.nan})
    sink.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 1,
        "reward/mean": 0.5,
        "dynamic_sampling/keep_rate": None,
    }


def test_a_resumed_run_drops_the_rows_it_will_write_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')  # killed while writing
    JsonlSink(path, resume_step=2).close()
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


def test_a_sink_that_breaks_is_dropped_and_the_others_go_on() -> None:
    rows = ListSink()
    fan = MetricFan([BrokenSink(), rows])
    fan.write(1, {"a/b": 1.0})
    fan.write(2, {"a/b": 2.0})
    assert [step for step, _ in rows.rows] == [1, 2]


class ClosedSink(ListSink):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_sink_that_cannot_be_closed_is_named_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    other = ClosedSink()
    MetricFan([BrokenSink(), other]).close()
    assert caplog.messages == ["the last metrics may not have reached BrokenSink: Operation not permitted"]
    assert other.is_closed
