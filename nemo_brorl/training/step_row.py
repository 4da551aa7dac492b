"""The row of metrics of the current step."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_brorl.ports import MetricSink


class StepRow:
    """Metrics of the current step.

    row.add(update.metrics, prompts.metrics())   # metrics of both
    row.add_seconds({"sync": 0.2})               # and time/sync_s
    row.write(7)                                 # one row for step 7; the next one is empty
    """

    def __init__(self, sink: MetricSink) -> None:
        self.sink = sink
        self.metrics: dict[str, float] = {}

    def add(self, *sources: Mapping[str, float]) -> None:
        """Add metrics to the row of the current training step.

        A later value replaces an earlier one of the same name.
        """
        for metrics in sources:
            self.metrics.update(metrics)

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add durations to the row of a training step as metrics `time/NAME_s`."""
        for name, value in seconds.items():
            self.metrics[f"time/{name}_s"] = value

    def write(self, step: int) -> None:
        """Pass the row of metrics of a training step to the loggers and start an empty row.

        The row is written before the step's checkpoint, so that a resumed run has all rows.
        """
        self.sink.write(step, self.metrics)
        self.metrics = {}
