"""The observers that every run has: its files, its alarms, and the console line of each step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_brorl.algorithm.teaching import BY_REWARDS, Teaching
from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.core.console import Console, get_logger
from nemo_brorl.core.files import append_line
from nemo_brorl.core.step_time import Pace, rounded_seconds
from nemo_brorl.ports import RolloutStore
from nemo_brorl.rollouts.metrics import mass_balance_metrics
from nemo_brorl.training.observers import Observer, StepMade
from nemo_brorl.training.parity import alarms
from nemo_brorl.training.records import drop_after
from nemo_brorl.training.store.record import step_record
from nemo_brorl.training.tables import step_line

log = get_logger(__name__)


class StoredRollouts(Observer):
    """Observer that passes the groups of every step to the rollout store."""

    def __init__(self, store: RolloutStore, sampling: DynamicSamplingConfig, teaching: Teaching = BY_REWARDS) -> None:
        self.store = store
        self.sampling = sampling
        self.teaching = teaching

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        self.store.write(step_record(made.step, made.plan, made.filled, made.batch, self.sampling, self.teaching))
        return {}

    def before_save(self) -> None:
        self.store.flush()

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        self.store.drop_after(step)


class Events(Observer):
    """Observer that writes rare events to `events.jsonl`, one {"step", "event", "reason", "value"} per line.

    The file is created with the first event.
    """

    def __init__(self, run_folder: Path) -> None:
        self.path = run_folder / "events.jsonl"

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        row = {
            "step": step,
            "event": kind,
            "reason": reason,
            "value": value,
        }
        append_line(self.path, json.dumps(row))

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        drop_after(self.path, step)


class MassBalanceMetrics(Observer):
    """Observer that reports the terms of BroRL's mass balance for the groups that a step sampled."""

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        return mass_balance_metrics(made.filled.sampled) if made.filled.sampled else {}


class StepLine(Observer):
    """Observer that prints a line per step and its failed rewards, and warns if log-probs differ too much."""

    def __init__(self, console: Console, max_steps: int, parity: ParityConfig) -> None:
        self.console = console
        self.max_steps = max_steps
        self.parity = parity
        self.failures: list[str] = []  # of this step
        self.expected_s: float | None = None  # seconds of a step by the rehearsal, until a step has shown them
        self._pace: Pace | None = None

    def step_begins(self, step: int) -> None:
        """Begin to measure the pace with the first training step. Step 0 is the validation before it."""
        if step and self._pace is None:
            self._pace = Pace(time.monotonic())

    def event(self, step: int, kind: str, reason: str, value: float) -> None:
        if kind == "reward_failed":
            self.failures.append(reason)

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        left_s = None
        if self._pace is not None:
            step_s = self._pace.step_ended(time.monotonic())
            left_s = (self.max_steps - step) * step_s
            if self.expected_s is not None:
                expected, took = rounded_seconds(self.expected_s), rounded_seconds(step_s)
                self.console.line(f"expected about {expected} s for a step, took {took} s")
                self.expected_s = None
        self.console.line(step_line(step, self.max_steps, metrics, left_s))
        for line in self.failures:
            self.console.line(f"reward  {line}")
        self.failures.clear()
        for alarm in alarms(metrics, self.parity):
            log.warning("%s", alarm)
