"""Observers of a training run: they watch, report metrics and write files, and never change what is trained.

The trainer calls every observer of its list at the same moments:

    step_begins      before the batch of a step is filled
    update_planned   before the policy is updated: the update's plan and its batch
    step_ended       after the policy was updated and the engines have its weights; returns metrics for the step's row
    validated        after a validation, with the groups of the held-out prompts
    row_complete     with all metrics of the step
    interval_ended   after a validation and a checkpoint, where they were due
    event            something rare: another stage of the schedule, a reset of the reference, a stall
    starved          no batch could be filled; the groups that were sampled for it
    before_save      a checkpoint will be written

An observer overrides the methods that it needs. Removing one from the list changes no digit of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_brorl.core.errors import TrainingError
from nemo_brorl.training.step_row import Refusals
from nemo_brorl.types import FilledBatch, ScoredGroup, TrainBatch, UpdatePlan, UpdateReport


@dataclass(frozen=True)
class StepMade:
    """Everything that one training step has produced."""

    step: int  # counted from 1
    filled: FilledBatch
    batch: TrainBatch
    plan: UpdatePlan
    update: UpdateReport


class Observer:
    """An observer that does nothing. Its name, that of its class, is unique in a run and is stored in checkpoints."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def step_begins(self, step: int) -> None:
        """Notify an observer of the training loop that training step `step` begins.

        Step 0 is the validation before the first step.
        """

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        """Show an observer of the training loop the next policy update, before it runs.

        `plan` is how the update distributes the rollouts of `batch` to ranks and micro-batches.
        """

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        """Return the metrics that an observer of the training loop adds to those of a step.

        Neither the run nor another observer may use the same names for metrics.
        """
        return {}

    def validated(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Show an observer of the training loop the validation after step `step`: a group for each held-out prompt."""

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show an observer of the training loop all metrics of a training step."""

    def interval_ended(self) -> None:
        """Notify an observer of the training loop that a training step has ended.

        The validation and the checkpoint that were due after the step have ended, too.
        """

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        """Notify an observer of the training loop of a rare event.

        Examples are a new reference model, a stall, and the next stage of the schedule that raises N (rollouts per
        prompt).
        """

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        """Show an observer of the training loop the groups sampled for a batch that could not be filled.

        Too few groups were informative, and the run ends with an error after this.
        """

    def before_save(self) -> None:
        """Notify an observer of the training loop that a checkpoint is about to be written.

        The observer writes what it has not written yet, such as rollouts, so that nothing before the checkpoint is
        lost.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of an observer of the training loop for a checkpoint, JSON-able."""
        return {}

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        """Let an observer of the training loop continue after step `step`, with its state in the checkpoint.

        `state` is None if the checkpoint has none for this observer. (None, None) is a new run. The observer removes
        what it wrote about later steps, because the run repeats them.
        """


class Observers:
    """The observers of a run, in the order in which they are called."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Keep the observers of a training loop in order. Raises TrainingError when two have the same name."""
        self.observers = tuple(observers)
        names = [observer.name for observer in self.observers]
        for name in names:
            if names.count(name) > 1:
                raise TrainingError(f"two observers of the run are called {name}: leave one of them out")
        self._owners: dict[str, str] = {}  # the step's metrics of observers, and who reported each
        self._refusals = Refusals()

    def step_begins(self, step: int) -> None:
        self._each(lambda observer: observer.step_begins(step))

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        self._each(lambda observer: observer.update_planned(plan, batch))

    def step_ended(self, made: StepMade) -> dict[str, float]:
        """Return the metrics of a training step from all observers of the training loop.

        `Refusals` handles a metric that two observers report.
        """
        self._owners = {}
        row: dict[str, float] = {}
        for observer in self.observers:
            for metric, value in observer.step_ended(made).items():
                owner = self._owners.setdefault(metric, observer.name)
                if owner == observer.name:
                    row[metric] = value
                else:
                    self._refusals.refuse(
                        f"observers {owner} and {observer.name} both report the metric {metric}: rename one"
                    )
        return row

    def check_metrics(self, own: Mapping[str, float]) -> None:
        """Refuse metrics of observers in the current step that are among the run's own, as `Refusals` does."""
        for metric, owner in self._owners.items():
            if metric in own:
                self._refusals.refuse(
                    f"observer {owner} reports the metric {metric}, which the run itself reports: rename it in {owner}"
                )
        self._refusals.is_first_step = False

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show each observer of the training loop its own copy of the metrics of a training step."""
        self._each(lambda observer: observer.row_complete(step, dict(metrics)))

    def interval_ended(self) -> None:
        self._each(lambda observer: observer.interval_ended())

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        self._each(lambda observer: observer.event(step, kind, reason, value))

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        self._each(lambda observer: observer.starved(sampled))

    def before_save(self) -> None:
        self._each(lambda observer: observer.before_save())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every observer of the training loop that has one, by the observer's name."""
        states = {observer.name: observer.state_dict() for observer in self.observers}
        return {name: state for name, state in states.items() if state}

    def resume(self, step: int | None, states: Mapping[str, Any]) -> None:
        """Resume every observer of a run from the observer's state in the checkpoint.

        An observer that is not in the checkpoint starts without a state.
        """
        self._each(lambda observer: observer.resume(step, states.get(observer.name)))

    def _each(self, call: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            call(observer)
