"""The row of metrics of the current step, in which a name has one owner."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.ports import MetricSink

log = get_logger(__name__)


class Refusals:
    """Refusals of metrics under a name that is taken.

    One raises TrainingError in the first step that this process trains. Later it costs a warning and the metric,
    because a run of days is worth more.
    """

    def __init__(self) -> None:
        self.is_first_step = True
        self._warned: set[str] = set()

    def refuse(self, message: str) -> None:
        if self.is_first_step:
            raise TrainingError(message)
        if message not in self._warned:
            log.warning("%s. It is left out.", message)
        self._warned.add(message)


class StepRow:
    """Metrics of the current step.

    row.add(update.metrics, prompts.metrics())   # metrics of both
    row.add_seconds({"sync": 0.2})               # and time/sync_s
    row.observed = {"own/steps": 1.0}            # of observers, which replace none of the run's
    row.write(7)                                 # one row for step 7; the next one is empty
    """

    def __init__(self, sink: MetricSink) -> None:
        self.sink = sink
        self.metrics: dict[str, float] = {}
        self.observed: dict[str, float] = {}
        self._refusals = Refusals()

    def add(self, *sources: Mapping[str, float]) -> None:
        """Add the run's own metrics to the row. `Refusals` handles a name that the row has."""
        for metrics in sources:
            for name, value in metrics.items():
                if name not in self.metrics:
                    self.metrics[name] = value
                else:
                    self._refusals.refuse(
                        f"the metric {name} is reported twice: rename it where your own loss or prompt pool reports it"
                    )

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add durations to the row of a training step as metrics `time/NAME_s`."""
        self.add({f"time/{name}_s": value for name, value in seconds.items()})

    def merged(self) -> dict[str, float]:
        """Return the metrics of the run and of its observers, as a copy."""
        return self.metrics | self.observed | self.metrics

    def write(self, step: int) -> None:
        """Pass the row of metrics of a training step to the loggers and start an empty row.

        The row is written before the step's checkpoint, so that a resumed run has all rows.
        """
        self.sink.write(step, self.merged())
        self.metrics = {}
        self.observed = {}
        if step > 0:
            self._refusals.is_first_step = False
