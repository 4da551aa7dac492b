"""Metrics on disk."""

import json
import math
from pathlib import Path

import pytest

from nemo_brorl.training.records import JsonlSink, drop_after, read_metrics, read_records


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


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", '"x"', "[1]", "{}", "true", "null"])
def test_what_is_no_finite_number_is_no_metric(value: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "reward/mean": 0.5, "time/save_s": {value}}}\n')
    assert read_metrics(path) == [{"step": 1, "reward/mean": 0.5, "time/save_s": None}]


def test_texts_of_events_outlive_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"step": 1, "event": "start"}\n{"step": 2, "event": "stall"}\n')
    drop_after(path, 1)
    assert read_records(path) == [{"step": 1, "event": "start"}]
