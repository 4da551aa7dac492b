"""Learning again from stored steps, without engines: from the checkpoint before a step, with its rollouts, under the
run's settings or others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_brorl.algorithm.packing import plan_step
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.metric_sinks import read_metrics
from nemo_brorl.ports import Policy
from nemo_brorl.rollouts.schedule import learning_rate
from nemo_brorl.training.checkpoint import Checkpoints, step_of
from nemo_brorl.training.store.reader import num_left_out, read_step, stored_steps
from nemo_brorl.training.store.record import TRAINED
from nemo_brorl.types import StepRecord, UpdatePlan, UpdateReport

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """Where a replay begins."""

    step: int  # the last one whose update the weights have seen
    checkpoint: Path | None  # None: the model that the run began with


def find_start(run_folder: Path, first: int, last: int) -> Start:
    """The newest checkpoint before step `first`. Raises DataError unless all steps from there to `last` are stored with
    all of their groups."""
    start = Start(0, None)
    for folder in Checkpoints(run_folder / "checkpoints", keep=1).complete():
        if step_of(folder) < first:
            start = Start(step_of(folder), folder)
            break
    stored = stored_steps(run_folder)
    needed = set(range(start.step + 1, last + 1))
    missing = sorted(needed.difference(stored))
    if missing:
        raise DataError(
            f"steps {start.step + 1} to {last} must be stored, as the checkpoint before step {first} is of step "
            f"{start.step}; {missing[0]} is not. Stored are {stored[0]} to {stored[-1]}: choose a step after another "
            "checkpoint (trainer.keep_checkpoints), or keep more steps (store.keep_steps, store.max_gib)"
        )
    for step in sorted(needed):
        num = num_left_out(run_folder, step)
        if num:
            raise DataError(
                f"step {step} cannot be learnt again: {num} of its groups are not stored; train with store.share=1"
            )
    return start


class Replay:
    """Stored steps of a run, learnt again under `config`; `recorded` are the run's own settings.

    replay = Replay(run_folder, recorded, config)
    replay.learn(policy, 7)          # policy has seen the updates before step 7
    replay.learn(policy, 8, lag=1)   # rollouts of weights that are no longer those of the run
    """

    def __init__(
        self,
        run_folder: Path,
        recorded: BroRLConfig,
        config: BroRLConfig,
    ) -> None:
        self.run_folder = run_folder
        self.recorded = recorded
        self.config = config
        self.resets = _reset_steps(run_folder)

    def learn(
        self,
        policy: Policy,
        step: int,
        lag: int = 0,
    ) -> UpdateReport:
        """The update of a step, and the reference reset after it if the run made one. `lag`: updates under other
        settings before it, which make its rollouts so much older."""
        record = read_step(self.run_folder, step, fates=[TRAINED])
        plan = self.plan(record, policy.data_parallel_size)
        report = policy.update(off_policy(plan, lag) if lag else plan)
        if step in self.resets:
            policy.reset_reference(self.recorded.algorithm.reference_reset.clear_optimizer)
        return report

    def plan(self, record: StepRecord, data_parallel_size: int) -> UpdatePlan:
        """As the loop made it, with the settings of now."""
        groups = [stored.scored for stored in record.groups]
        batch = make_train_batch(groups, self.config, record.step, record.loss_scale)
        return plan_step(
            batch,
            self.config,
            step=record.step,
            version=record.version,
            learning_rate=self._learning_rate(record),
            data_parallel_size=data_parallel_size,
        )

    def _learning_rate(self, record: StepRecord) -> float:
        """The recorded one, which knows the stage of the run's schedule, by as much larger as the settings are."""
        was = learning_rate(self.recorded.policy.optim, record.step)
        now = learning_rate(self.config.policy.optim, record.step)
        if now == was:
            return record.learning_rate
        return record.learning_rate * now / was


def off_policy(plan: UpdatePlan, lag: int) -> UpdatePlan:
    """The plan with rollouts that are older by `lag` updates: their mismatch counts as drift, and no gain is measured
    with them."""
    groups = []
    for group in plan.groups:
        older = replace(group, staleness=group.staleness + lag, is_measured=False)
        groups.append(older)
    return replace(plan, groups=tuple(groups))


def recorded_row(run_folder: Path, step: int) -> Row:
    """The run's own metrics of a step. Raises DataError when there are none."""
    path = run_folder / "metrics.jsonl"
    for row in read_metrics(path) if path.exists() else []:
        if row["step"] == step:
            return row
    raise DataError(f"{path} has no row of step {step}")


def differences(row: Row, report: UpdateReport) -> list[str]:
    """Names of the update's metrics that are not the recorded ones, bit for bit (NaN is null in a file)."""
    names: list[str] = []
    for name, value in report.metrics.items():
        written = json.loads(json.dumps(value)) if value == value else None
        if row.get(name) != written:
            names.append(name)
    return names


def _reset_steps(run_folder: Path) -> set[int]:
    """Steps after which the run reset its reference."""
    path = run_folder / "events.jsonl"
    if not path.exists():
        return set()
    return {event["step"] for event in read_metrics(path) if event.get("event") == "reference_reset"}
