"""Records of a run as JSON lines: the metrics of every step, and rare events.

A resumed run removes the rows after its checkpoint and writes them again.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import MAX_LINE, VAST, read_json, record_lines

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import MALFORMED, append_line, naming, write_atomically

log = get_logger(__name__)


class JsonlSink:
    """Sink that writes one flat JSON object per step to `metrics.jsonl`.

    Rows after `resume_step` are removed, because a resumed run writes them again. Raises ResourceError if the disk
    refuses.
    """

    def __init__(self, path: Path, resume_step: int | None) -> None:
        self.path = path
        drop_after(path, resume_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row of metrics to metrics.jsonl. NaN and infinity become null, because JSON has neither."""
        row: dict[str, float | None] = {"step": step}
        for name, value in metrics.items():
            row[name] = value if math.isfinite(value) else None
        append_line(self.path, json.dumps(row))

    def close(self) -> None:
        """Do nothing: metrics.jsonl is open only while a row is written."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl. Raises OSError and RecordError."""
    return [as_metrics(row) for row in read_records(path)]


def as_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics with None, as `JsonlSink` has it, in place of what is no finite number."""
    return {name: value if _is_finite(value) else None for name, value in row.items()}


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file of metrics or events that have a step. Raises OSError and RecordError.

    Damaged rows, and rows that are half-written because the process was killed, are left out with one warning.
    """
    rows = []
    left_out: list[str] = []
    for number, line in enumerate(record_lines(path, VAST), start=1):
        try:
            row = read_json(line, most_bytes=MAX_LINE)
            rows.append({**row, "step": int(operator.index(row["step"]))})
        except MALFORMED:
            left_out.append(str(number))
    if left_out:
        log.warning("%s: ignored half-written or damaged rows: line %s", path, ", ".join(left_out))
    return rows


def drop_after(path: Path, step: int | None) -> None:
    """Remove the rows of steps after `step` from a JSONL file of metrics or events, or all rows for None."""
    if not path.exists():
        return
    text = ""
    for row in read_records(path):
        if step is not None and row["step"] <= step:
            text += json.dumps(row) + "\n"
    with naming(path):
        write_atomically(path, text)
