"""Records of a run, a JSON object a line: the metrics of every step, rare events.

A resumed run removes what lies behind its checkpoint and writes it again.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import MALFORMED, append_line, naming, write_atomically

log = get_logger(__name__)


class JsonlSink:
    """One flat object per step in `metrics.jsonl`. Rows after `resume_step` are removed: a resumed run writes them
    again. A disk that refuses raises ResourceError."""

    def __init__(self, path: Path, resume_step: int | None) -> None:
        self.path = path
        drop_after(path, resume_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; NaN and infinity become null, which JSON can hold."""
        row: dict[str, float | None] = {"step": step}
        for name, value in metrics.items():
            row[name] = value if math.isfinite(value) else None
        append_line(self.path, json.dumps(row))

    def close(self) -> None:
        """Nothing to do: the file is open only while a row is written."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of metrics or events, those that have a step; half-written ones (the process was killed) and
    damaged ones are left out, with one warning. Raises OSError."""
    rows = []
    left_out: list[str] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({**row, "step": operator.index(row["step"])})
        except MALFORMED:
            left_out.append(str(number))
    if left_out:
        log.warning("%s: left out what is no row, half-written or damaged: line %s", path, ", ".join(left_out))
    return rows


def drop_after(path: Path, step: int | None) -> None:
    """Rewrite a file of rows without those of later steps; None: without any."""
    if not path.exists():
        return
    text = ""
    for row in read_metrics(path):
        if step is not None and row["step"] <= step:
            text += json.dumps(row) + "\n"
    with naming(path):
        write_atomically(path, text)
