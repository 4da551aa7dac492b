"""Metrics on disk."""

import json
import math
from pathlib import Path

from nemo_brorl.training.records import JsonlSink, read_metrics


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
