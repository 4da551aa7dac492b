"""Trackers of metrics: TensorBoard, W&B, ClearML, Neptune and DLLogger through the loggers of NeMo's exp_manager,
MLflow through Lightning's, SwanLab and trackio by themselves."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.ports import MetricSink

TRACKER_FAILURES = (OSError, RuntimeError, ValueError)  # and BroRLError is a RuntimeError, too

log = get_logger(__name__)


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
                # Lightning words every failure as a value of the wrong type, and keeps the failure as its cause
                log.warning("metrics no longer go to %s: %s", type(sink).__name__, error.__cause__ or error)
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
