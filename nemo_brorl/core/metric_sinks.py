"""Sinks of metrics and of rare events: a JSON-lines file always; TensorBoard, W&B, ClearML, Neptune and DLLogger
through the loggers of NeMo's exp_manager, MLflow through Lightning's, SwanLab and trackio by themselves."""

from __future__ import annotations

import importlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.files import MALFORMED, append_line, naming, write_whole
from nemo_brorl.ports import MetricSink

log = get_logger(__name__)


class JsonlSink:
    """One flat object per step in `metrics.jsonl`. Rows after `resume_step` are removed: a resumed run writes them
    again. A disk that refuses raises ResourceError."""

    def __init__(self, path: Path, resume_step: int | None) -> None:
        self.path = path
        _drop_after(path, resume_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; NaN and infinity become null, which JSON can hold."""
        row: dict[str, float | None] = {"step": step}
        for name, value in metrics.items():
            row[name] = value if math.isfinite(value) else None
        append_line(self.path, json.dumps(row))

    def close(self) -> None:
        """Nothing to do: the file is open only while a row is written."""


class EventLog:
    """Log of what happens rarely, one {"step", "event", "reason", "value"} a line in `events.jsonl`; no file before the
    first event."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self,
        step: int,
        event: str,
        reason: str,
        value: float,
    ) -> None:
        """Append an event. Raises ResourceError."""
        row = {
            "step": step,
            "event": event,
            "reason": reason,
            "value": value,
        }
        append_line(self.path, json.dumps(row))

    def drop_after(self, step: int | None) -> None:
        """Remove events of later steps, which a resumed run comes to again; all of them for a run that starts anew
        (None)."""
        _drop_after(self.path, step)


class AlarmLog:
    """Log of alarms and what they were seen on, one object with its step a line; no file before the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, alarm: Mapping[str, Any]) -> None:
        """Append an alarm. Raises ResourceError."""
        append_line(self.path, json.dumps({"step": step, **alarm}))

    def drop_after(self, step: int | None) -> None:
        """Remove alarms of later steps, as `EventLog.drop_after`."""
        _drop_after(self.path, step)


class LoggerSink:
    """A logger made by exp_manager."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics on."""
        self.logger.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and close."""
        self.logger.finalize("success")


class ClearMLSink(LoggerSink):
    """NeMo's ClearML logger, which keeps a task and draws no curves of its own."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report every metric as a point of a curve, its group the title."""
        super().write(step, metrics)
        reports = self.logger.clearml_task.get_logger()
        for name, value in metrics.items():
            title, _, series = name.partition("/")
            if math.isfinite(value):
                reports.report_scalar(
                    title=title,
                    series=series,
                    value=value,
                    iteration=step,
                )


class ModuleSink:
    """A tracker with the functions `init`, `log` and `finish` that W&B made common: SwanLab, trackio."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        """`arguments` are those of `init`."""
        self.module = importlib.import_module(name)
        self.module.init(**arguments)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics on; what is not finite is left out."""
        finite = {}
        for name, value in metrics.items():
            if math.isfinite(value):
                finite[name] = value
        self.module.log(finite, step=step)

    def close(self) -> None:
        """Flush and close."""
        self.module.finish()


TRACKER_FAILURES = (OSError, RuntimeError, ValueError)  # and BroRLError is a RuntimeError, too


class MetricFan:
    """Writes to every sink. A tracker that breaks while training runs is dropped with a warning: it never stops a run.
    The run's own file does, as its rows would be lost."""

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self.sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write to all."""
        for sink in list(self.sinks):
            try:
                sink.write(step, metrics)
            except BroRLError:
                raise
            except TRACKER_FAILURES as error:
                log.warning("metrics no longer go to %s: %s", type(sink).__name__, error)
                self.sinks.remove(sink)

    def close(self) -> None:
        """Close all; a tracker that cannot write its last lines is named in a warning."""
        for sink in self.sinks:
            try:
                sink.close()
            except BroRLError:
                raise
            except TRACKER_FAILURES as error:
                log.warning("the last metrics may not have reached %s: %s", type(sink).__name__, error)


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


def _drop_after(path: Path, step: int | None) -> None:
    """Rewrite a file of rows without those of later steps; None: without any."""
    if not path.exists():
        return
    text = ""
    for row in read_metrics(path):
        if step is not None and row["step"] <= step:
            text += json.dumps(row) + "\n"
    with naming(path):
        write_whole(path, text)
