"""Send metrics to trackers.

TensorBoard, W&B, ClearML, Neptune and DLLogger use the loggers of NeMo's exp_manager, and MLflow uses Lightning's.
SwanLab and trackio are called directly.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_brorl.core.console import get_logger
from nemo_brorl.ports import MetricSink

TRACKER_FAILURES = (OSError, RuntimeError, ValueError)  # errors of a failing tracker

log = get_logger(__name__)


class LoggerSink:
    """Metric sink for a logger made by exp_manager or Lightning."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of a training step to the Lightning logger."""
        self.logger.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and close the Lightning logger."""
        self.logger.finalize("success")


class ClearMLSink(LoggerSink):
    """Metric sink for NeMo's ClearML logger, which keeps a task but draws no curves of metrics."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report every metric to the experiment tracker as a point of a curve, with the metric's group as the title."""
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
    """Metric sink for a tracker with W&B's functions `init`, `log` and `finish`: SwanLab, trackio."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Import the Python module `name` of an experiment tracker and call its function `init` with `arguments`."""
        self.module = importlib.import_module(name)
        self.module.init(**arguments)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the finite metrics of a training step to the experiment tracker."""
        finite = {}
        for name, value in metrics.items():
            if math.isfinite(value):
                finite[name] = value
        self.module.log(finite, step=step)

    def close(self) -> None:
        """Flush and close the experiment tracker."""
        self.module.finish()


class MetricFan:
    """Metric sink that writes to several sinks.

    A tracker that fails during training is dropped with a warning and never stops a run. A failure of the run's own
    file stops it, because its rows would be lost.
    """

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self.sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a training step to every logger and tracker, and drop trackers that fail."""
        for sink in list(self.sinks):
            try:
                sink.write(step, metrics)
            except TRACKER_FAILURES as error:
                # Lightning reports every failure as a value of the wrong type, with the real error as its cause.
                log.warning("metrics no longer go to %s: %s", type(sink).__name__, error.__cause__ or error)
                self.sinks.remove(sink)

    def close(self) -> None:
        """Close every metric logger and tracker, and warn of a tracker that may lack the last metrics."""
        for sink in self.sinks:
            try:
                sink.close()
            except TRACKER_FAILURES as error:
                log.warning("the last metrics may not have reached %s: %s", type(sink).__name__, error)
