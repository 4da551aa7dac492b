"""`brorl replay RUN --step K [--through J] [--trust NAME ...] [--set KEY=VALUE ...]` trains on stored rollouts again.

It needs no engines. It repeats the update bit for bit, or shows what other settings would have made of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import SMALL, read_json

from brorl_lab.store_reader import num_left_out, read_step, stored_steps
from brorl_lab.trusted_functions import check_trusted, typed_texts
from nemo_brorl.algorithm.packing import plan_step
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.algorithm.user_functions import check_functions
from nemo_brorl.algorithm.whitening import CarriedMoments
from nemo_brorl.config.load import load_run_config
from nemo_brorl.config.memory import check_memory
from nemo_brorl.config.model_rules import check_model_rules
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, setup_logging
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.run_folders import run_folder
from nemo_brorl.ports import Policy
from nemo_brorl.rollouts.schedule import learning_rate
from nemo_brorl.training.checkpoint import Checkpoints, step_of
from nemo_brorl.training.export import empty
from nemo_brorl.training.records import read_metrics, read_records
from nemo_brorl.training.store.record import TRAINED
from nemo_brorl.types import StepRecord, UpdatePlan, UpdateReport

Row = Mapping[str, Any]
DIFFERS = 1  # exit code of an unequal replay
SHOWN = {
    "loss": "policy/loss",
    "gradient norm": "policy/grad_norm",
    "KL to the policy before (nats)": "policy/approximate_kl",
    "KL to the reference (nats)": "policy/kl_to_reference",
    "KL to the teacher (nats)": "policy/kl_to_teacher",
    "clip share": "policy/clip_fraction",
    "measured gain": "mass_balance/measured_gain",
    "its standard error": "mass_balance/measured_gain_error",
    "entropy before (nats)": "policy/entropy",
}


@dataclass(frozen=True)
class ReplayStart:
    """The checkpoint from which a replay starts, and its step."""

    step: int  # last step whose update the weights have seen
    checkpoint: Path | None  # None: the model that the run started with


def find_start(run_folder: Path, first: int, last: int) -> ReplayStart:
    """Return the run's newest checkpoint before step `first`, from which stored steps are trained on again.

    Raises DataError unless all steps from the checkpoint to step `last` are stored with all of their groups.
    """
    start = ReplayStart(0, None)
    for folder in Checkpoints(run_folder / "checkpoints", keep=1).complete():
        if step_of(folder) < first:
            start = ReplayStart(step_of(folder), folder)
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
                f"step {step} cannot be replayed: {num} of its groups are not stored; train with store.share=1"
            )
    return start


class Replay:
    r"""Stored steps of a run, to be trained on again under `config`. `recorded` has the run's own settings.

    replay = Replay(run_folder, recorded, config)
    replay.train_on_step(policy, 7)         # policy has seen the updates before step 7
    replay.train_on_step(policy, 8, lag=1)  # rollouts of weights that are no longer those of the run
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
        self.sizes = RunSizes.from_config(config)
        self.resets = _reset_steps(run_folder)
        self.whitening = CarriedMoments()  # what the replayed steps have left

    def train_on_step(
        self,
        policy: Policy,
        step: int,
        lag: int = 0,
    ) -> UpdateReport:
        """Repeat the policy update of a stored step, and the reset of the reference policy if the run made one then.

        `lag` counts earlier updates under other settings, by which the step's rollouts have become older.
        """
        record = read_step(self.run_folder, step, fates=[TRAINED])
        plan = self.plan(record)
        report = policy.update(off_policy(plan, lag) if lag else plan)
        if step in self.resets:
            policy.reset_reference(self.recorded.algorithm.reference_reset.clear_optimizer)
        return report

    def plan(self, record: StepRecord) -> UpdatePlan:
        """Return the plan for a policy update with the stored rollouts of a step, under the settings of this replay."""
        groups = [stored.scored for stored in record.groups]
        batch = make_train_batch(
            groups,
            record.step,
            self.config.algorithm,
            self.config.rewards.shaping,
            self.config.rollouts.max_response_tokens,
            record.loss_scale,
            self.config.dynamic_sampling.least_range,
            self.whitening if self.config.dynamic_sampling.varies else None,
        )
        return plan_step(
            batch,
            self.config.algorithm,
            self.config.policy,
            self.sizes,
            seed=self.config.trainer.seed,
            step=record.step,
            version=record.version,
            learning_rate=self._learning_rate(record),
        )

    def _learning_rate(self, record: StepRecord) -> float:
        """Return a step's recorded learning rate, scaled by the ratio of the new to the old rate in the settings.

        The recorded rate includes the factor of the stage of the run's rollout schedule.
        """
        was = learning_rate(self.recorded.policy.optim, record.step)
        now = learning_rate(self.config.policy.optim, record.step)
        if now == was:
            return record.learning_rate
        return record.learning_rate * now / was


def off_policy(plan: UpdatePlan, lag: int) -> UpdatePlan:
    """Return a copy of an update plan whose rollouts count as older by `lag` policy updates.

    The difference between their sampled and trained log-probs then counts as policy drift, and no `measured_gain`
    metric is computed from them.
    """
    groups = []
    for group in plan.groups:
        older = replace(group, staleness=group.staleness + lag, is_measured=False)
        groups.append(older)
    return replace(plan, groups=tuple(groups))


def recorded_row(run_folder: Path, step: int) -> Row:
    """Return the metrics that a run recorded for a training step.

    Raises DataError when it recorded none.
    """
    path = run_folder / "metrics.jsonl"
    for row in read_metrics(path) if path.exists() else []:
        if row["step"] == step:
            return row
    raise DataError(f"{path} has no row of step {step}")


def differing_metrics(row: Row, report: UpdateReport) -> list[str]:
    """Return the names of a repeated update's metrics that differ in any bit from those in the run's metrics file.

    NaN is written as null in the file.
    """
    names: list[str] = []
    for name, value in report.metrics.items():
        written = read_json(json.dumps(value), most_bytes=SMALL) if value == value else None
        if row.get(name) != written:
            names.append(name)
    return names


def _reset_steps(run_folder: Path) -> set[int]:
    """Return the steps after which the run reset the reference policy of its KL term."""
    path = run_folder / "events.jsonl"
    if not path.exists():
        return set()
    return {event["step"] for event in read_records(path) if event.get("event") == "reference_reset"}


@dataclass(frozen=True)
class ReplayArguments:
    """The parsed command line of `brorl replay`."""

    run_folder: Path
    first: int
    last: int
    export: Path | None
    overrides: tuple[str, ...]
    trusted: tuple[str, ...] = ()  # import paths of the run's settings that may be called


def main(argv: Sequence[str]) -> int:
    """Repeat the policy updates of stored training steps and return the exit code.

    0: done, 1: no setting was changed and still an update differs from the run's, 2: a mistake in the input.
    """
    asked = parse(argv)
    setup_logging()
    run_folder(asked.run_folder)
    return replay(asked, Console())


def parse(argv: Sequence[str]) -> ReplayArguments:
    """Parse the command line of `brorl replay`. Exits with 2 for a wrong option."""
    parser = argparse.ArgumentParser(prog="brorl replay", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--step", type=int, required=True, help="step to train on again, counted from 1")
    parser.add_argument(
        "--through", type=int, help="last step; under other settings the steps after the first are off-policy"
    )
    parser.add_argument("--export", type=Path, help="folder for the weights afterwards, Hugging Face format")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another setting; also without --set"
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="a function that the run's settings name, package.module:function, which may be imported and called",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args(argv)
    last = options.through or options.step
    if not 1 <= options.step <= last:
        parser.error(f"--step {options.step} --through {last}: pass a step from 1, and one that is not before it")
    overrides = (*options.set, *options.overrides)
    return ReplayArguments(options.run, options.step, last, options.export, overrides, tuple(options.trust))


def replay(asked: ReplayArguments, console: Console) -> int:
    """Train on stored steps of a run again, print the result of each, and return the exit code.

    Raises ConfigError for settings that cannot be used, DataError for steps that are not stored completely, and
    CheckpointError for a checkpoint that cannot be loaded.
    """
    recorded = settings_of(asked.run_folder)
    config = settings_of(asked.run_folder, asked.overrides)
    trusted = {*asked.trusted, *typed_texts(asked.overrides)}
    check_trusted(config, trusted)
    start = find_start(asked.run_folder, asked.first, asked.last)
    # Steps between the checkpoint and the first requested one are repeated with the run's own settings.
    if start.step + 1 < asked.first:
        check_trusted(recorded, trusted)
    check_model_rules(config, has_engines=False)
    check_functions(config.algorithm, config.rewards.shaping)
    if asked.export is not None:
        empty(asked.export, "--export")
    check_memory(config)
    console.line(_introduction(asked, start))
    begin = time.monotonic()
    reports = replay_steps(asked, start, recorded, config)
    num_different = print_reports(asked, reports, console)
    console.line(f"{time.monotonic() - begin:.0f} s in all")
    return DIFFERS if num_different and not asked.overrides else 0


def settings_of(run_folder: Path, overrides: Sequence[str] = ()) -> BroRLConfig:
    """Return a run's recorded settings with the given overrides applied.

    New files go into `run_folder`, whatever folder the recorded settings name. Raises ConfigError for settings that
    cannot be read or used.
    """
    config = load_run_config(run_folder, overrides)
    exp_manager = replace(config.exp_manager, explicit_log_dir=str(run_folder.absolute()))
    return replace(config, exp_manager=exp_manager)


def replay_steps(
    asked: ReplayArguments,
    start: ReplayStart,
    recorded: BroRLConfig,
    config: BroRLConfig,
) -> list[UpdateReport]:
    """Train on the requested stored steps again and return the reports of the policy updates.

    Steps between the checkpoint from which the replay starts and the first requested one are repeated with the run's
    own settings.
    """
    unchanged = Replay(asked.run_folder, recorded, recorded)
    changed = Replay(asked.run_folder, recorded, config)
    with tempfile.TemporaryDirectory(prefix="brorl_replay_") as scratch:
        if asked.overrides and start.step + 1 < asked.first:
            start = catch_up(unchanged, start, asked.first, Path(scratch))
        with policy_of(config, start) as policy:
            for step in range(start.step + 1, asked.first):
                unchanged.train_on_step(policy, step)
            reports: list[UpdateReport] = []
            for step in range(asked.first, asked.last + 1):
                lag = step - asked.first if asked.overrides else 0
                reports.append(changed.train_on_step(policy, step, lag))
            if asked.export is not None:
                policy.export(asked.export.absolute())
    return reports


def catch_up(
    unchanged: Replay,
    start: ReplayStart,
    first: int,
    scratch: Path,
) -> ReplayStart:
    """Repeat a run's updates before step `first` with the run's own settings, and return a checkpoint of the result.

    The checkpoint is in the folder `scratch`.
    """
    folder = scratch / "policy"
    folder.mkdir()
    with policy_of(unchanged.config, start) as policy:
        for step in range(start.step + 1, first):
            unchanged.train_on_step(policy, step)
        policy.begin_save(folder)
        policy.finish_save(wait=True)
    return ReplayStart(first - 1, scratch)


@contextlib.contextmanager
def policy_of(config: BroRLConfig, start: ReplayStart) -> Iterator[Policy]:
    """Start the training workers of a policy, without inference engines, from the weights at the start of a replay."""
    from nemo_brorl.commands.wiring import policy_alone  # Ray, Megatron: imported only for valid settings

    with policy_alone(config, with_reference=True, is_loaded=start.checkpoint is not None) as policy:
        if start.checkpoint is not None:
            policy.load(start.checkpoint / "policy")
        yield policy


def print_reports(asked: ReplayArguments, reports: Sequence[UpdateReport], console: Console) -> int:
    """Print a table of metrics for every repeated update, and return how many metrics differ from the recorded ones."""
    num_different = 0
    for step, report in enumerate(reports, start=asked.first):
        row = recorded_row(asked.run_folder, step)
        console.line()
        console.table([f"step {step}", "run", "replay"], table_rows(row, report))
        different = differing_metrics(row, report)
        num_different += len(different)
        if different and not asked.overrides:
            console.line(f"{len(different)} of {len(report.metrics)} numbers differ: {', '.join(different)}")
        elif not different:
            console.line(f"bit-identical: all {len(report.metrics)} numbers of the update are those of the run")
    return num_different


def table_rows(row: Mapping[str, Any], report: UpdateReport) -> list[list[str]]:
    """Return the table rows that compare a run's recorded metrics with those of a repeated update.

    A metric that neither of the two has is left out.
    """
    rows: list[list[str]] = []
    for title, name in SHOWN.items():
        was = row.get(name)
        now = report.metrics.get(name)
        if was is not None or now is not None:
            rows.append([title, _number(was), _number(now)])
    return rows


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.6g}"


def _introduction(asked: ReplayArguments, start: ReplayStart) -> str:
    where = f"the checkpoint of step {start.step}" if start.checkpoint else "the model that the run started with"
    steps = f"step {asked.first}" if asked.first == asked.last else f"steps {asked.first} to {asked.last}"
    text = f"{steps} of {asked.run_folder}, from {where}, "
    if not asked.overrides:
        return text + "with the run's own settings"
    text += "with " + " ".join(asked.overrides)
    if asked.last > asked.first:
        text += f"; steps from {asked.first + 1} on are off-policy: their rollouts were drawn by the run's weights"
    return text
