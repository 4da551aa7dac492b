"""Where metrics go: a JSON-lines file always, TensorBoard and W&B through the loggers of NeMo's exp_manager."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.logs import get_logger
from nemo_brorl.ports import MetricSink

log = get_logger(__name__)


class JsonlSink:
    """One flat object per step in `metrics.jsonl`. Rows after `resume_step` are removed: a resumed run writes them again."""

    def __init__(self, path: Path, resume_step: int | None) -> None:
        self.path = path
        if path.exists():
            rows = [] if resume_step is None else [row for row in read_metrics(path) if row["step"] <= resume_step]
            partial = path.with_suffix(".partial")
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
            partial.replace(path)
        self.file = path.open("a", buffering=1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; NaN and infinity become null, which JSON can hold."""
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.file.write(json.dumps({"step": step, **row}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class LoggerSink:
    """A logger made by exp_manager (TensorBoard, W&B)."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics on."""
        self.logger.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and close."""
        self.logger.finalize("success")


class MetricFan:
    """Writes to every sink. A sink that breaks while training runs is dropped with a warning: metrics never stop a run."""

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self.sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write to all."""
        for sink in list(self.sinks):
            try:
                sink.write(step, metrics)
            except (OSError, RuntimeError, ValueError) as error:
                log.warning("metrics no longer go to %s: %s", type(sink).__name__, error)
                self.sinks.remove(sink)

    def close(self) -> None:
        """Close all."""
        for sink in self.sinks:
            sink.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of a metrics file; a half-written last line (the process was killed) is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            log.warning("%s: left out a half-written row", path)
    return rows
