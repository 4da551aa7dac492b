"""The BroRL loop: collect → learn → publish → record. No branch on backend, parallelism or hardware in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.algorithm.packing import plan_update
from nemo_brorl.algorithm.reference_reset import ReferenceResets
from nemo_brorl.algorithm.train_batch import learning_batch
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StepCut, StopRequest, Stopwatch
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import StarvationError, TrainingError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.core.metric_sinks import EventLog
from nemo_brorl.evaluation import EvaluationResult, Evaluator
from nemo_brorl.ports import Generator, MetricSink, Policy, PromptSource
from nemo_brorl.rollouts.batch_fill import Collected, Collection
from nemo_brorl.rollouts.carry_over import Collector, Standpoint
from nemo_brorl.rollouts.metrics import reward_metrics
from nemo_brorl.rollouts.sampler import TURN_S, Sampler, write_samples
from nemo_brorl.rollouts.schedule import RolloutSchedule
from nemo_brorl.training.checkpoint import Checkpoints, RunState, Salvaged, Saver, check_state_keys
from nemo_brorl.training.device_handover import DeviceTurns
from nemo_brorl.training.metrics import mass_balance_metrics
from nemo_brorl.training.parity import alarms
from nemo_brorl.training.tables import step_line
from nemo_brorl.types import TrainBatch, UpdatePlan, UpdateReport

log = get_logger(__name__)

OVERLAP_TURN_S = 0.1  # while the policy learns: how late the end of its update may be noticed

STATE_KEYS = {"version", "prompts", "collector", "num_skipped", "best_pass_at_1", "history", "reference", "schedule"}


@dataclass(frozen=True)
class Parts:
    """What the loop works with, made by `wiring.py`."""

    prompts: PromptSource
    policy: Policy
    generator: Generator
    sampler: Sampler
    evaluator: Evaluator
    sink: MetricSink
    checkpoints: Checkpoints
    console: Console
    decode: Callable[[Sequence[int]], str]
    run_folder: Path


@dataclass(frozen=True)
class StepReport:
    """One step, as it is recorded."""

    step: int
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]


class BroRLTrainer:
    """Owns the state of a run: step, weight version, stream position, groups under way, best validation."""

    def __init__(self, config: BroRLConfig, parts: Parts, stop: StopRequest) -> None:
        self.config = config
        self.parts = parts
        self.stop = stop
        self.step_number = 0
        self.version = 0
        self.num_skipped = 0
        self.best_pass_at_1 = -1.0
        self.history: list[dict[str, float]] = []  # validations, with their step
        self.row: dict[str, float] = {}  # metrics of the step under way, written once it is complete
        self.resets = ReferenceResets(config.algorithm.reference_reset)
        self.schedule = RolloutSchedule(config)
        self.saver = Saver(parts.checkpoints, parts.policy, in_background=config.trainer.async_save)
        self.events = EventLog(parts.run_folder / "events.jsonl")
        self.collector = Collector(config, parts.prompts, parts.sampler, parts.console)
        self.next_collection: Collection | None = None  # with rollouts.overlap: under way while the policy learns
        self.before = self.collector.standpoint()  # the newest collection
        self.turns = DeviceTurns(parts.policy, parts.generator)

    def fit(self) -> None:
        """Train up to max_steps, or until asked to stop; the state is saved either way."""
        if self.stop.reason is not None and not (self.history or self.step_number):
            return  # asked to stop while it started: there is nothing to save yet
        self.turns.begin(self.version, is_published=self.version == 0)
        if not self.history:
            self.validate()
            self.write_row()
        while self.step_number < self.config.trainer.max_steps and not self.stop.should_stop():
            self.stop.step_begins()
            try:
                report = self.step()
            except StepCut:
                self.save(wait=True, at=self.before)
                num = self.parts.checkpoints.keep_salvage(Salvaged(self.step_number, self.collector.salvaged))
                again = (
                    f"{self.step_number + 1} was given up for want of time; it will begin anew, with its "
                    f"{num:,} rollouts"
                )
                self.parts.console.line(f"step {again}")
                break
            except StarvationError:
                self.save(wait=True)  # what was sampled and learnt so far is kept for other settings
                raise
            self.record(report)
            self.after_step()
            self.stop.step_ended()
        if self.stop.reason is not None:
            self.save(wait=True)
            self.parts.console.line(
                f"stopped after step {self.step_number} ({self.stop.reason}); the same command goes on from here"
            )

    def step(self) -> StepReport:
        """One BroRL update: fill a batch with informative groups, learn from it, hand out the new weights."""
        watch = Stopwatch()
        with watch.measure("collect"):
            collected = self.collect()
        watch.seconds["generate"] += collected.generate_s
        watch.seconds["reward"] += collected.reward_s
        batch = learning_batch(collected.batch, self.config, self.step_number + 1)
        self.parts.console.stage(f"update on {sum(map(len, batch.rollouts)):,} rollouts")
        with self.turns.policy_turn(watch) as turn:
            update = self.learn(self.plan(batch))
            turn.made(update.version)
        self.step_number += 1
        self.version = update.version
        self.num_skipped += update.num_skipped
        samples = self.parts.run_folder / "rollouts" / f"step_{self.step_number}.jsonl"
        write_samples(samples, batch, self.config.rollouts.save_samples, self.parts.decode)
        sampled = collected.sampled
        metrics = {
            **(reward_metrics(sampled) | mass_balance_metrics(sampled) if sampled else {}),
            **collected.metrics,
            **self.parts.prompts.metrics(),
            **update.metrics,
            **self.turns.metrics(),
            "policy/learning_rate": self.schedule.learning_rate(self.step_number),
            "rollouts/num_per_prompt": float(self.schedule.stage.num_per_prompt),
            "rollouts/prompts_per_step": float(self.schedule.stage.prompts_per_step),
            "policy/num_updates": float(update.num_updates),
            "policy/num_skipped": float(self.num_skipped),
        }
        return StepReport(self.step_number, metrics, {**watch.seconds, **update.seconds})

    def collect(self) -> Collected:
        """A full batch of informative groups. Raises StarvationError, or StepCut when there is no time for it."""
        collection, self.next_collection = self.next_collection or self.begin_collection(), None
        return collection.complete(self.stop.check).finish()

    def begin_collection(self) -> Collection:
        """Sample the next batch."""
        self.before = self.collector.standpoint()
        return Collection(self.collector, self.schedule.stage, self.version)

    def learn(self, plan: UpdatePlan) -> UpdateReport:
        """Run the update; with `rollouts.overlap`, sample the next batch meanwhile."""
        if not self.config.rollouts.overlap or self.step_number + 1 >= self.config.trainer.max_steps:
            return self.parts.policy.update(plan)
        self.next_collection = self.begin_collection()
        self.parts.policy.begin_update(plan)
        with self.parts.sampler.stage("generate and update", self.parts.policy.stalled):
            while (
                update := self.parts.policy.finish_update(timeout_s=0.0 if not self.next_collection.is_done else TURN_S)
            ) is None:
                if not self.next_collection.is_done:
                    self.next_collection.advance(OVERLAP_TURN_S)
        return update

    def complete_collection(self) -> None:
        """Before engines validate, or a checkpoint is written: what is under way ends; its groups are taken by the next
        step."""
        if self.next_collection is not None:
            self.next_collection.complete().close()

    def plan(self, batch: TrainBatch) -> UpdatePlan:
        """The update's layout for the policy's data-parallel ranks."""
        config = self.config
        return plan_update(
            batch,
            num_mini_batches=config.algorithm.num_mini_batches,
            data_parallel_size=self.parts.policy.data_parallel_size,
            token_budget=config.policy.tokens_per_micro_batch * config.policy.context_parallel_size,
            shared_prompt=config.policy.shared_prompt,
            version=self.version + 1,
            learning_rate=self.schedule.learning_rate(self.step_number + 1),
            objective=config.algorithm.loss,
            seed=config.trainer.seed * 1_000_003 + self.step_number,
        )

    def record(self, report: StepReport) -> None:
        """Note the step's metrics and show its line."""
        metrics = {**report.metrics, **{f"time/{name}_s": value for name, value in report.seconds.items()}}
        self.row.update(metrics)
        self.parts.console.line(step_line(report.step, self.config.trainer.max_steps, report.metrics, report.seconds))
        for text in alarms(metrics, self.config.parity):
            log.warning("%s", text)

    def after_step(self) -> None:
        """What is due between steps: validation, reference reset, checkpoint. Raises TrainingError after too many
        non-finite updates."""
        step, trainer = self.step_number, self.config.trainer
        is_last = step == trainer.max_steps
        if is_last or is_due(step, trainer.val_interval):
            self.validate()
            self.begin_stage(self.schedule.after_validation(step, self.history[-1]["validation/pass_at_1"]))
        self.begin_stage(self.schedule.before_step(step))
        self.reset_reference()
        self.saver.finish(wait=False)
        self.row.update(self.saver.take_seconds())
        self.write_row()
        if is_last or is_due(step, trainer.save_interval):
            self.save(wait=is_last)
        if self.num_skipped > self.config.trainer.max_skipped_updates:
            self.saver.finish(wait=True)
            raise TrainingError(
                f"{self.num_skipped} mini-batches had a non-finite loss or gradient (trainer.max_skipped_updates="
                f"{self.config.trainer.max_skipped_updates}): lower policy.optim.lr, or look at "
                f"policy/log_prob_mismatch"
            )

    def begin_stage(self, reason: str | None) -> None:
        """Say that the schedule of N has moved on, if it has."""
        if reason is None:
            return
        stage = self.schedule.stage
        self.events.write(self.step_number, "stage", reason, float(stage.num_per_prompt))
        self.parts.console.line(
            f"from step {self.step_number + 1}: N = {stage.num_per_prompt} × {stage.prompts_per_step} prompts, "
            f"learning rate {self.schedule.learning_rate(self.step_number + 1):.3g} ({reason})"
        )

    def reset_reference(self) -> None:
        """Make the current weights the reference of the KL term when one of the settings asks for it."""
        reset = self.resets.due(self.step_number, self.row)
        if reset:
            with self.turns.policy_turn(Stopwatch()):
                self.parts.policy.reset_reference(self.config.algorithm.reference_reset.clear_optimizer)
            self.resets.note_reset(self.step_number)
            self.events.write(self.step_number, "reference_reset", reset.reason, reset.value)
            self.parts.console.line(f"reference reset after step {self.step_number} ({reset.reason}: {reset})")
        self.row.update(self.resets.metrics(self.step_number))

    def write_row(self) -> None:
        """Hand the step's metrics to the sinks: one row a step, before its checkpoint, so that a resumed run has them
        all."""
        self.parts.sink.write(self.step_number, self.row)
        self.row = {}

    def validate(self) -> EvaluationResult:
        """Evaluate on the held-out prompts; the best weights so far are exported as a Hugging Face folder."""
        watch = Stopwatch()
        self.complete_collection()
        with watch.measure("validate"):
            result = self.parts.evaluator.evaluate()
        self.resets.note_validation(result.overall.pass_at_1)
        metrics = {**result.metrics(), "time/validate_s": watch.seconds["validate"]}
        self.history.append({"step": float(self.step_number), **metrics})
        self.row.update(metrics)
        self.parts.console.line(
            f"validation after step {self.step_number}: pass@1 {result.overall.pass_at_1:.1%} ± "
            f"{result.overall.standard_error:.1%}"
        )
        if self.step_number and result.overall.pass_at_1 > self.best_pass_at_1:
            self.best_pass_at_1 = result.overall.pass_at_1
            with self.turns.policy_turn(watch):
                self.parts.policy.export(self.parts.run_folder / "hf")
        return result

    def save(self, wait: bool, at: Standpoint | None = None) -> None:
        """Write a checkpoint of this step, of sampling as it stood `at` (None: as it stands); with `wait`, return once
        it is complete. Raises CheckpointError."""
        self.complete_collection()
        at = at or self.collector.standpoint()
        state = {
            "version": self.version,
            "prompts": at.prompts,
            "collector": at.collector,
            "num_skipped": self.num_skipped,
            "best_pass_at_1": self.best_pass_at_1,
            "history": self.history,
            "reference": self.resets.state_dict(),
            "schedule": self.schedule.state_dict(),
        }
        with self.turns.policy_turn(Stopwatch()):
            self.saver.save(RunState(self.step_number, state, at.under_way), wait)

    def resume(self) -> bool:
        """Continue from the newest usable checkpoint; False when there is none."""
        run = self.parts.checkpoints.load_newest(self.parts.policy.load)
        self.events.drop_after(run.step if run else None)
        if run is None:
            return False
        check_state_keys(run.state, STATE_KEYS)
        self.step_number, self.version = run.step, run.state["version"]
        self.num_skipped, self.best_pass_at_1 = run.state["num_skipped"], run.state["best_pass_at_1"]
        self.history = run.state["history"]
        self.resets.load_state_dict(run.state["reference"])
        self.schedule.load_state_dict(run.state["schedule"])
        self.parts.prompts.load_state_dict(run.state["prompts"])
        self.collector.load_state_dict(run.state["collector"], run.under_way, self.parts.checkpoints.salvage(run.step))
        return True


def is_due(step: int, interval: int) -> bool:
    """Whether something that happens every `interval` steps (0: never) happens after `step`."""
    return interval > 0 and step % interval == 0
