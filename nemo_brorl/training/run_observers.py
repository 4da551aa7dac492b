"""The observers that every run has: its files, its alarms, and the line of each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.config.records import TimelineConfig
from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, get_logger
from nemo_brorl.core.timeline import Timeline
from nemo_brorl.evaluation.shown_responses import shown_responses
from nemo_brorl.ports import RolloutStore
from nemo_brorl.rollouts.metrics import mass_balance_metrics
from nemo_brorl.training.observers import Observer, StepMade
from nemo_brorl.training.own_observers import find_observers
from nemo_brorl.training.parity import alarms
from nemo_brorl.training.records import EventLog
from nemo_brorl.training.samples import write_samples
from nemo_brorl.training.step_timeline import StepTimelines
from nemo_brorl.training.store.record import step_record
from nemo_brorl.training.tables import step_line
from nemo_brorl.types import ScoredGroup, TrainBatch, UpdatePlan

Decode = Callable[[Sequence[int]], str]

log = get_logger(__name__)


class Samples(Observer):
    """Writes a few responses of every step as text, and shows some when no batch can be filled."""

    def __init__(self, run_folder: Path, num_samples: int, decode: Decode, console: Console) -> None:
        self.run_folder = run_folder
        self.num_samples = num_samples
        self.decode = decode
        self.console = console

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        write_samples(self.run_folder, made.step, made.batch, self.num_samples, self.decode)
        return {}

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        if not sampled:
            return
        for line in shown_responses(list(sampled), self.decode):
            self.console.line(line)


class StoredRollouts(Observer):
    """Hands the groups of every step to the rollout store."""

    def __init__(self, store: RolloutStore, sampling: DynamicSamplingConfig) -> None:
        self.store = store
        self.sampling = sampling

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        self.store.write(step_record(made.step, made.plan, made.filled, made.batch, self.sampling))
        return {}

    def before_save(self) -> None:
        self.store.flush()

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        self.store.drop_after(step)


class Timelines(Observer):
    """Writes the timeline of every step, with the rollouts that each mini-batch learns from."""

    def __init__(self, timeline: Timeline, run_folder: Path, settings: TimelineConfig) -> None:
        self.steps = StepTimelines(timeline, run_folder, settings)

    def step_begins(self, step: int) -> None:
        self.steps.begin(step)

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        self.steps.learns(plan, batch)

    def interval_ended(self) -> None:
        self.steps.end()

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        self.steps.files.drop_after(step)


class Events(Observer):
    """Writes what happens rarely to `events.jsonl`."""

    def __init__(self, run_folder: Path) -> None:
        self.file = EventLog(run_folder / "events.jsonl")

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        self.file.write(step, kind, reason, value)

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        self.file.drop_after(step)


class MassBalance(Observer):
    """Reports the terms of BroRL's mass balance for the groups that a step sampled."""

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        return mass_balance_metrics(made.filled.sampled) if made.filled.sampled else {}


class StepLine(Observer):
    """Prints one line a step, and warns where log-probs of policy and engines are too far apart."""

    def __init__(self, console: Console, max_steps: int, parity: ParityConfig) -> None:
        self.console = console
        self.max_steps = max_steps
        self.parity = parity

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        self.console.line(step_line(step, self.max_steps, metrics))
        for alarm in alarms(metrics, self.parity):
            log.warning("%s", alarm)


def run_observers(
    config: BroRLConfig,
    run_folder: Path,
    store: RolloutStore,
    timeline: Timeline,
    decode: Decode,
    console: Console,
) -> list[Observer]:
    """Return the observers of a run, those that the settings add included. Raises ConfigError."""
    added = [make(run_folder) for make in find_observers(config.trainer.observers)]
    return [
        Timelines(timeline, run_folder, config.timeline),
        Samples(run_folder, config.rollouts.save_samples, decode, console),
        StoredRollouts(store, config.dynamic_sampling),
        Events(run_folder),
        MassBalance(),
        *added,
        StepLine(console, config.trainer.max_steps, config.parity),
    ]
