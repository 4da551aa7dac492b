"""The row of metrics of the step under way."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_brorl.ports import MetricSink


class StepRow:
    """Metrics of the step under way.

    row.add(update.metrics, prompts.metrics())   # metrics: what both say
    row.add_seconds({"sync": 0.2})               # and time/sync_s
    row.write(7)                                 # one row for step 7; the next one is empty
    """

    def __init__(self, sink: MetricSink) -> None:
        self.sink = sink
        self.metrics: dict[str, float] = {}

    def add(self, *sources: Mapping[str, float]) -> None:
        """Take in metrics, by name; a later value of the same name replaces the earlier one."""
        for metrics in sources:
            self.metrics.update(metrics)

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Take in durations as `time/NAME_s`."""
        for name, value in seconds.items():
            self.metrics[f"time/{name}_s"] = value

    def write(self, step: int) -> None:
        """Hand the row to the sinks and begin another: one row a step, before its checkpoint, so that a resumed run has
        them all."""
        self.sink.write(step, self.metrics)
        self.metrics = {}
