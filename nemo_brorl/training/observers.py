"""Observers of a training run: they look on, report metrics and write files, and change nothing of what is learned.

The trainer calls every observer of its list at the same moments:

    step_begins      before the batch of a step is filled
    update_planned   before the policy learns: the update's plan and its batch
    step_ended       after the policy has learned and engines have its weights; returns metrics for the step's row
    row_complete     with all metrics of the step
    interval_ended   after a validation and a checkpoint, where they were due
    event            something rare: another stage of the schedule, a reset of the reference, a stall
    starved          no batch could be filled; the groups that were sampled for it
    before_save      a checkpoint is about to be written

An observer overrides what it needs. Taking one out of the list changes no digit of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_brorl.core.errors import TrainingError
from nemo_brorl.types import FilledBatch, ScoredGroup, TrainBatch, UpdatePlan, UpdateReport


@dataclass(frozen=True)
class StepMade:
    """All that one step has made."""

    step: int  # counted from 1
    filled: FilledBatch
    batch: TrainBatch
    plan: UpdatePlan
    update: UpdateReport


class Observer:
    """An observer that does nothing. Its name, that of its class, is unique in a run and stands in checkpoints."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def step_begins(self, step: int) -> None:
        """Hear that step `step` begins; 0 is the validation before the first one."""

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        """Hear what the policy is about to learn from."""

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        """Return metrics of a step, by names that no other observer has."""
        return {}

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        """Read the metrics of a step."""

    def interval_ended(self) -> None:
        """Hear that a step has ended, and all that was due after it."""

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        """Hear of something rare."""

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        """Hear that these groups did not fill a batch, before the run ends with an error."""

    def before_save(self) -> None:
        """Hear that a checkpoint is about to be written."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the observer, JSON-able."""
        return {}

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        """Go on after step `step` with the state of its checkpoint, or without one (None); None, None: a new run.
        What was written of later steps is removed, as the run comes to them again."""


class Observers:
    """The observers of a run, in the order in which they are called."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Raises TrainingError when two have one name."""
        self.observers = tuple(observers)
        names = [observer.name for observer in self.observers]
        for name in names:
            if names.count(name) > 1:
                raise TrainingError(f"two observers of the run are called {name}: leave one of them out")

    def step_begins(self, step: int) -> None:
        """See `Observer.step_begins`."""
        self._each(lambda observer: observer.step_begins(step))

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        """See `Observer.update_planned`."""
        self._each(lambda observer: observer.update_planned(plan, batch))

    def step_ended(self, made: StepMade) -> dict[str, float]:
        """Return the metrics of all observers. Raises TrainingError when two report one metric."""
        owners: dict[str, str] = {}
        found: dict[str, float] = {}
        for observer in self.observers:
            metrics = observer.step_ended(made)
            for metric in metrics:
                if metric in owners:
                    raise TrainingError(
                        f"observers {owners[metric]} and {observer.name} both report the metric {metric}: rename one"
                    )
                owners[metric] = observer.name
            found.update(metrics)
        return found

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Observer.row_complete`."""
        self._each(lambda observer: observer.row_complete(step, metrics))

    def interval_ended(self) -> None:
        """See `Observer.interval_ended`."""
        self._each(lambda observer: observer.interval_ended())

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        """See `Observer.event`."""
        self._each(lambda observer: observer.event(step, kind, reason, value))

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        """See `Observer.starved`."""
        self._each(lambda observer: observer.starved(sampled))

    def before_save(self) -> None:
        """See `Observer.before_save`."""
        self._each(lambda observer: observer.before_save())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every observer that has one, by its name."""
        states = {observer.name: observer.state_dict() for observer in self.observers}
        return {name: state for name, state in states.items() if state}

    def resume(self, step: int | None, states: Mapping[str, Any]) -> None:
        """See `Observer.resume`; observers that the checkpoint does not know begin without a state."""
        self._each(lambda observer: observer.resume(step, states.get(observer.name)))

    def _each(self, call: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            call(observer)
