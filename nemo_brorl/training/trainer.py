"""The BroRL loop, fill a batch → learn → publish → record. No branch on backend, parallelism or hardware in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.algorithm.packing import plan_step
from nemo_brorl.algorithm.reference_reset import ReferenceResets
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.derived import num_engines
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StepCut, StopRequest, Stopwatch, is_due
from nemo_brorl.core.console import Console, get_logger
from nemo_brorl.core.errors import ServiceError, StarvationError, TrainingError
from nemo_brorl.core.metric_sinks import EventLog
from nemo_brorl.evaluation import EvaluationResult, Evaluator
from nemo_brorl.evaluation.rehearsal import shown_responses
from nemo_brorl.ports import Generator, MetricSink, Policy, PromptSource, RolloutStore
from nemo_brorl.rollouts.batch_fill import BatchFill
from nemo_brorl.rollouts.carry_over import CarryOver, SamplerState
from nemo_brorl.rollouts.reward_watch import RewardAlarms
from nemo_brorl.rollouts.sampler import TURN_S, Sampler
from nemo_brorl.rollouts.schedule import RolloutSchedule
from nemo_brorl.training.checkpoint import Checkpoints, CutStep, RunState, Saver, check_state_keys
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.parity import alarms
from nemo_brorl.training.run_folder import write_samples
from nemo_brorl.training.step_timeline import StepTimelines
from nemo_brorl.training.store.store import step_record
from nemo_brorl.training.tables import StepRow, step_line
from nemo_brorl.types import FilledBatch, TrainBatch, UpdatePlan, UpdateReport


@dataclass(frozen=True)
class Parts:
    """What the loop works with, made by `wiring.py`."""

    prompts: PromptSource
    policy: Policy
    generator: Generator
    sampler: Sampler
    evaluator: Evaluator
    sink: MetricSink
    store: RolloutStore
    checkpoints: Checkpoints
    console: Console
    decode: Callable[[Sequence[int]], str]
    run_folder: Path


log = get_logger(__name__)

OVERLAP_TURN_S = 0.1  # while the policy learns: how late the end of its update may be noticed
OWNERS = ("reference", "schedule", "reward_watch")
STATE_KEYS = {"version", "prompts", "carry_over", "num_skipped", "best_pass_at_1", "history", *OWNERS}


class BroRLTrainer:
    """Owns the state of a run: step, weight version, best validation; `carry_over` owns that of its sampling."""

    def __init__(self, config: BroRLConfig, parts: Parts, stop: StopRequest) -> None:
        self.config = config
        self.parts = parts
        self.stop = stop
        self.step_number = 0
        self.version = 0
        self.num_skipped = 0
        self.best_pass_at_1 = -1.0
        self.history: list[dict[str, float]] = []  # validations, with their step
        self.row = StepRow(parts.sink)
        self.resets = ReferenceResets(config.algorithm.reference_reset)
        self.schedule = RolloutSchedule(config)
        self.saver = Saver(parts.checkpoints, parts.policy, in_background=config.trainer.async_save)
        self.events = EventLog(parts.run_folder / "events.jsonl")
        self.reward_alarms = RewardAlarms(config.rewards.watch, parts.run_folder)
        self.carry_over = CarryOver(
            config.rollouts,
            config.dynamic_sampling,
            num_engines(config),
            parts.prompts,
            parts.sampler,
            config.rewards.stages,
        )
        self.fill: BatchFill | None = None  # the batch that no step has taken yet
        self.handover = DeviceHandover(parts.policy, parts.generator, parts.sampler.heartbeat)
        self.timeline = parts.sampler.heartbeat.timeline
        self.timelines = StepTimelines(self.timeline, parts.run_folder, config.timeline)

    def fit(self) -> None:
        """Train up to max_steps, or until asked to stop; the state is saved either way."""
        if self.stop.reason is not None and not self.history and self.step_number == 0:
            return  # asked to stop while it started: there is nothing to save yet
        self.handover.begin(self.version, is_published=self.version == 0)
        if not self.history:
            self.timelines.begin(self.step_number)
            self.validate()
            self.row.write(self.step_number)
            self.timelines.end()
        try:
            while self.step_number < self.config.trainer.max_steps and not self.stop.should_stop():
                self.stop.step_begins()
                self.timelines.begin(self.step_number + 1)
                self.step()
                self.after_step()
                self.timelines.end()
                self.stop.step_ended()
        except StepCut:
            self.save_before_cut_step()
        if self.stop.reason is not None:
            self.save(wait=True)
            self.parts.console.line(
                f"stopped after step {self.step_number} ({self.stop.reason}); the same command goes on from here"
            )

    def step(self) -> None:
        """One BroRL update: fill a batch with informative groups, learn from it, hand out the new weights. Raises
        StarvationError, or StepCut when there is no time for it."""
        watch = Stopwatch(self.timeline)
        with watch.measure("collect"):
            filled = self.fill_batch()
        watch.seconds["generate"] += filled.generate_s
        watch.seconds["reward"] += filled.reward_s
        with self.timeline.stage("advantages"):
            batch = make_train_batch(filled.batch, self.config, self.step_number + 1, filled.loss_scale)
        num_trained = sum(len(rollouts) for rollouts in batch.rollouts)
        self.parts.console.stage(f"update on {num_trained:,} rollouts")
        with self.handover.policy_turn(watch) as turn:
            with self.timeline.stage("update"):
                plan = self.plan(batch)
                self.timelines.learns(plan, batch)
                update = self.learn(plan)
            turn.made(update.version)
        self.step_number += 1
        self.version = update.version
        self.num_skipped += update.num_skipped
        with self.timeline.stage("record"):
            num_samples = self.config.rollouts.save_samples
            write_samples(self.parts.run_folder, self.step_number, batch, num_samples, self.parts.decode)
            self.parts.store.write(step_record(self.step_number, plan, filled, batch, self.config.dynamic_sampling))
            self.record(filled, update, watch)

    def record(self, filled: FilledBatch, update: UpdateReport, watch: Stopwatch) -> None:
        """Note the metrics of a step that has ended and show its line."""
        counts = {"policy/num_updates": float(update.num_updates), "policy/num_skipped": float(self.num_skipped)}
        self.row.add(counts, self.schedule.metrics(self.step_number), filled.metrics, update.metrics)
        verifier = self.parts.sampler.verifier
        self.row.add(self.parts.prompts.metrics(), self.handover.metrics(), verifier.metrics())
        self.row.add(self.reward_alarms.observe(self.step_number, filled.sampled))
        self.row.add_seconds(watch.seconds)
        self.row.add_seconds(update.seconds)
        line = step_line(self.step_number, self.config.trainer.max_steps, self.row.metrics)
        self.parts.console.line(line)
        for alarm in alarms(self.row.metrics, self.config.parity):
            log.warning("%s", alarm)

    def fill_batch(self) -> FilledBatch:
        """A full batch of informative groups. Raises StarvationError, or StepCut when there is no time for it."""
        if self.fill is None:
            self.fill = BatchFill(self.carry_over, self.schedule.stage, self.version)
        try:
            self.fill.complete(self.stop.check)
        except StarvationError:
            sampled = self.fill.dynamic_sampling.sampled()
            for line in shown_responses(sampled, self.parts.decode) if sampled else ():
                self.parts.console.line(line)
            self.fill = None
            self.save(wait=True)  # what was sampled and learnt so far is kept for other settings
            raise
        except ServiceError:
            self.save_before_cut_step("as a verifier's service failed")
            raise
        filled = self.fill.finish()
        self.fill = None
        return filled

    def complete_fill(self) -> None:
        """End what is being sampled, before a validation or a checkpoint; the next step takes the batch."""
        if self.fill is not None:
            self.fill.complete()

    def learn(self, plan: UpdatePlan) -> UpdateReport:
        """Run the update; with `rollouts.overlap`, sample the next batch meanwhile."""
        policy = self.parts.policy
        is_last = self.step_number + 1 >= self.config.trainer.max_steps
        if is_last or not self.config.rollouts.overlap:
            return policy.update(plan)
        fill = BatchFill(self.carry_over, self.schedule.stage, self.version)
        self.fill = fill
        policy.begin_update(plan)
        with self.parts.sampler.stage("generate and update", policy.stalled):
            update = policy.finish_update(timeout_s=0.0)
            while update is None:
                if fill.is_done:
                    update = policy.finish_update(timeout_s=TURN_S)
                else:
                    fill.advance(OVERLAP_TURN_S)
                    update = policy.finish_update(timeout_s=0.0)
        return update

    def plan(self, batch: TrainBatch) -> UpdatePlan:
        """The update's layout for the policy's data-parallel ranks."""
        return plan_step(
            batch,
            self.config,
            step=self.step_number + 1,
            version=self.version + 1,
            learning_rate=self.schedule.learning_rate(self.step_number + 1),
            data_parallel_size=self.parts.policy.data_parallel_size,
        )

    def after_step(self) -> None:
        """What is due between steps: validation, reference reset, checkpoint. Raises TrainingError after too many
        non-finite updates."""
        step, settings = self.step_number, self.config.trainer
        is_last = step == settings.max_steps
        if is_last or is_due(step, settings.val_interval):
            result = self.validate()
            self.begin_stage(self.schedule.after_validation(step, result.overall.pass_at_1))
        self.begin_stage(self.schedule.before_step(step, self.carry_over.num_sampled))
        self.reset_reference()
        with self.timeline.stage("record"):
            self.saver.finish(wait=False)
            self.row.add(self.saver.take_seconds())
            self.row.write(step)
        if is_last or is_due(step, settings.save_interval):
            with self.timeline.stage("checkpoint"):
                self.save(wait=is_last)
        if self.num_skipped > settings.max_skipped_updates:
            self.saver.finish(wait=True)
            raise TrainingError(
                f"{self.num_skipped} mini-batches had a non-finite loss or gradient (trainer.max_skipped_updates="
                f"{settings.max_skipped_updates}): lower policy.optim.lr, or look at policy/log_prob_mismatch"
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
        reset = self.resets.due(self.step_number, self.row.metrics)
        if reset:
            with self.timeline.stage("reference reset"), self.handover.policy_turn(Stopwatch(self.timeline)):
                self.parts.policy.reset_reference(self.config.algorithm.reference_reset.clear_optimizer)
            self.resets.note_reset(self.step_number)
            self.events.write(self.step_number, "reference_reset", reset.reason, reset.value)
            self.parts.console.line(f"reference reset after step {self.step_number} ({reset.reason}: {reset})")
        self.row.add(self.resets.metrics(self.step_number))

    def validate(self) -> EvaluationResult:
        """Evaluate on the held-out prompts; the best weights so far are exported as a Hugging Face folder."""
        watch = Stopwatch(self.timeline)
        self.complete_fill()
        with watch.measure("validate"):
            result = self.parts.evaluator.evaluate()
        self.resets.note_validation(result.overall.pass_at_1)
        metrics = {**result.metrics(), "time/validate_s": watch.seconds["validate"]}
        self.history.append({"step": float(self.step_number), **metrics})
        self.row.add(metrics)
        overall = result.overall
        self.parts.console.line(
            f"validation after step {self.step_number}: pass@1 {overall.pass_at_1:.1%} ± {overall.error_text}"
        )
        if self.step_number and overall.pass_at_1 > self.best_pass_at_1:
            self.best_pass_at_1 = overall.pass_at_1
            with self.timeline.stage("export"), self.handover.policy_turn(watch):
                self.parts.policy.export(self.parts.run_folder / "hf")
        return result

    def save(self, wait: bool, at: SamplerState | None = None) -> None:
        """Write a checkpoint of this step, of sampling as it stood `at` (None: as it stands); with `wait`, return once
        it is complete. Raises CheckpointError."""
        self.complete_fill()
        self.parts.store.flush()
        sampling = at or self.carry_over.state()
        state = {
            "version": self.version,
            "prompts": sampling.prompts,
            "carry_over": sampling.carry_over,
            "num_skipped": self.num_skipped,
            "best_pass_at_1": self.best_pass_at_1,
            "history": self.history,
            "reference": self.resets.state_dict(),
            "schedule": self.schedule.state_dict(),
            "reward_watch": self.reward_alarms.state_dict(),
        }
        with self.handover.policy_turn(Stopwatch(self.timeline)):
            self.saver.save(RunState(self.step_number, state, sampling.groups), wait)

    def save_before_cut_step(self, why: str = "for want of time") -> None:
        """Save the run as it stood when the step that was cut began, and the rollouts that this step had sampled."""
        assert self.fill is not None, "a step is cut only while its batch is filled"
        cut = self.fill
        self.fill = None
        self.save(wait=True, at=cut.state_before)
        num_kept = self.parts.checkpoints.save_cut_step(CutStep(self.step_number, cut.replay_cache.chunks))
        given_up = f"step {self.step_number + 1} was given up {why}"
        self.parts.console.line(f"{given_up}; it will begin anew, with its {num_kept:,} rollouts")

    def resume(self) -> bool:
        """Continue from the newest usable checkpoint; False when there is none."""
        run = self.parts.checkpoints.load_newest(self.parts.policy.load)
        resume_step = run.step if run else None
        self.events.drop_after(resume_step)
        self.parts.store.drop_after(resume_step)
        self.timelines.files.drop_after(resume_step)
        self.reward_alarms.resume(resume_step, run.state.get("reward_watch") if run else None)
        if run is None:
            return False
        state = run.state
        check_state_keys(state, STATE_KEYS)
        self.step_number = run.step
        self.version = state["version"]
        self.num_skipped = state["num_skipped"]
        self.best_pass_at_1 = state["best_pass_at_1"]
        self.history = state["history"]
        self.resets.load_state_dict(state["reference"])
        self.schedule.load_state_dict(state["schedule"])
        sampling = SamplerState(state["prompts"], state["carry_over"], run.groups)
        self.carry_over.load_state(sampling, self.parts.checkpoints.load_cut_step(run.step))
        return True
