"""The BroRL training loop: fill a batch → update the policy → publish the weights → record.

It has no branch on backend, parallelism or hardware.
"""

from __future__ import annotations

from nemo_brorl.algorithm.packing import plan_step
from nemo_brorl.algorithm.reference_reset import ReferenceResets
from nemo_brorl.algorithm.teaching import Teaching
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.memory import rehearsed_tokens
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StepCut, StopRequest, Stopwatch, is_due
from nemo_brorl.core.errors import (
    ParityError,
    ResourceError,
    ServiceError,
    StarvationError,
    TrainingError,
    VerifierError,
)
from nemo_brorl.rollouts.batches import Batches
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.dress_rehearsal import rehearse
from nemo_brorl.training.observers import Observers, StepMade
from nemo_brorl.training.parity import NUM_PROMPTS, check_parity, mismatch_fault
from nemo_brorl.training.parts import Parts
from nemo_brorl.training.saved_run import Progress, SavedRun, Stateful
from nemo_brorl.training.step_row import StepRow
from nemo_brorl.training.validations import Validations
from nemo_brorl.types import FilledBatch, TrainBatch, UpdatePlan, UpdateReport


class BroRLTrainer:
    """The training loop of one run. It owns the step and the weight version, and its parts own all other state."""

    def __init__(self, config: BroRLConfig, parts: Parts, stop: StopRequest) -> None:
        self.config = config
        self.parts = parts
        self.stop = stop
        self.step_number = 0
        self.progress = Progress()
        heartbeat = parts.sampler.heartbeat
        self.timeline = heartbeat.timeline
        self.row = StepRow(parts.sink)
        self.update_metrics: dict[str, float] = {}  # of the last update, which decide about resets
        self.resets = ReferenceResets(config.algorithm.reference_reset)
        self.batches = Batches(
            config.rollouts,
            config.dynamic_sampling,
            config.policy.optim,
            parts.sizes,
            parts.prompts,
            parts.sampler,
            Teaching.from_config(config.algorithm, config.rewards.shaping),
        )
        self.schedule = self.batches.schedule
        self.handover = DeviceHandover(parts.policy, parts.generator, heartbeat)
        self.validations = Validations(parts, self.handover)
        self.observers = Observers(parts.observers)
        stateful: dict[str, Stateful] = {
            "progress": self.progress,
            "reference": self.resets,
            "schedule": self.schedule,
            "validations": self.validations,
        }
        self.saved = SavedRun(config.trainer, parts, self.batches, self.observers, self.handover, stateful)

    @property
    def version(self) -> int:
        """Version of the policy's weights."""
        return self.progress.version

    def begin(self) -> None:
        """Rehearse an update, publish the weights, and compare the log-probs of engines and policy, before any step.

        Raises TrainingError, GenerationError, ResourceError, CheckpointError or ParityError for what does not work.
        """
        config, parts = self.config, self.parts
        rehearse(parts, self.handover, self.version, rehearsed_tokens(config))
        if config.parity.enabled:
            report = check_parity(
                parts.evaluator.prompts[:NUM_PROMPTS],
                self.handover,
                config.rollouts,
                config.parity,
                bound=parts.sizes.parity_bound,
                has_fp8=config.policy.fp8 is not None,
                seed=config.trainer.seed,
            )
            parts.console.line(f"parity: {report}")

    def fit(self) -> None:
        """Train up to `trainer.max_steps`, or until the run is asked to stop. The state is saved in both cases."""
        if self.stop.reason is not None and not self.validations.history and self.step_number == 0:
            return  # asked to stop during start-up: there is nothing to save yet
        if self.handover.version != self.version:
            # A resumed run begins here unless its caller has called `begin`.
            self.begin()
        # A run that a user's own loop began has steps but no validation.
        if not self.validations.history and self.step_number == 0:
            self.observers.step_begins(self.step_number)
            self.validate()
            self.row.write(self.step_number)
            self.observers.interval_ended()
        try:
            while self.step_number < self.config.trainer.max_steps and not self.stop.should_stop():
                self.stop.step_begins()
                self.observers.step_begins(self.step_number + 1)
                self.step()
                self.after_step()
                self.observers.interval_ended()
                self.stop.step_ended()
        except StepCut:
            self.saved.save_before_cut_step(self.step_number, "not enough time")
        if self.stop.reason is not None:
            self.saved.save(self.step_number, wait=True)
            self.parts.console.line(
                f"stopped after step {self.step_number} ({self.stop.reason}). Run the same command to resume."
            )

    def step(self) -> None:
        """Run a training step: fill a batch with informative groups, train on it, send new weights to the engines.

        Raises StarvationError if no batch can be filled, or StepCut when there is not enough time for the step.
        """
        watch = Stopwatch(self.timeline)
        with watch.measure("collect"):
            filled = self.fill_batch()
        self.learn(filled, watch)

    def learn(self, filled: FilledBatch, watch: Stopwatch) -> None:
        """Train on a full batch, send the new weights to the engines, and record the training step."""
        with self.timeline.stage("advantages"):
            batch = make_train_batch(
                filled.batch,
                self.step_number + 1,
                self.config.algorithm,
                self.config.rewards.shaping,
                self.config.rollouts.max_response_tokens,
                filled.loss_scale,
                self.config.dynamic_sampling.least_range,
                self.progress.whitening if self.config.dynamic_sampling.varies else None,
            )
        num_trained = sum(len(rollouts) for rollouts in batch.rollouts)
        self.parts.console.stage(f"update on {num_trained:,} rollouts")
        with self.stop.update(), self.handover.policy_phase(watch) as phase:
            with self.timeline.stage("update"):
                plan = self.plan(batch)
                self.observers.update_planned(plan, batch)
                update = self.update_policy(plan)
            phase.set_version(update.version)
        # A copy, because observers are handed the report.
        self.update_metrics = dict(update.metrics)
        self.step_number += 1
        self.progress.version = update.version
        self.progress.num_skipped += update.num_skipped
        with self.timeline.stage("record"):
            self.record(StepMade(self.step_number, filled, batch, plan, update), watch)

    def record(self, made: StepMade, watch: Stopwatch) -> None:
        """Add the metrics of a finished training step to its row, and pass them to the observers."""
        num_trained = sum(len(rollouts) for rollouts in made.batch.rollouts)
        counts = {"policy/num_updates": made.update.num_updates, "dynamic_sampling/trained_rollouts": num_trained}
        self.row.add({name: float(count) for name, count in counts.items()}, self.progress.metrics())
        self.row.add(self.schedule.metrics(made.step), made.filled.metrics, made.update.metrics)
        self.row.add(self.parts.prompts.metrics(), self.handover.metrics(), self.parts.sampler.verifier.metrics())
        self.row.add_seconds(watch.seconds)
        self.row.add_seconds({"generate": made.filled.generate_s, "reward": made.filled.reward_s})
        self.row.add_seconds(made.update.seconds)
        for line in made.filled.failures:
            self.observers.event(made.step, "reward_failed", line, made.filled.metrics.get("reward/num_failed", 0.0))
        self.row.observed = self.observers.step_ended(made)
        self.observers.row_complete(made.step, self.row.merged())

    def fill_batch(self) -> FilledBatch:
        """Return a full batch of groups to train on.

        Raises StarvationError if too many groups are uninformative, VerifierError if no response can be scored, or
        StepCut if time runs out, also for the update that follows.
        """
        try:
            return self.batches.take_batch(self.version, self.stop.check, self.stop.check_update)
        except (StarvationError, VerifierError):
            self.observers.starved(self.batches.drop())
            # The state is saved, so that the run can continue with other settings.
            self.saved.save(self.step_number, wait=True)
            raise
        except ServiceError:
            self.saved.save_before_cut_step(self.step_number, "a verifier's service failed")
            raise

    def update_policy(self, plan: UpdatePlan) -> UpdateReport:
        """Run the policy's update, during which the next batch is sampled if `rollouts.overlap` is on."""
        is_last = self.step_number + 1 >= self.config.trainer.max_steps
        if is_last or not self.config.rollouts.overlap:
            return self.parts.policy.update(plan)
        return self.batches.fill_during_update(self.parts.policy, plan, self.version)

    def plan(self, batch: TrainBatch) -> UpdatePlan:
        """Return the plan of an update: how the rollouts of a batch are distributed to data-parallel ranks."""
        return plan_step(
            batch,
            self.config.algorithm,
            self.config.policy,
            self.parts.sizes,
            seed=self.config.trainer.seed,
            step=self.step_number + 1,
            version=self.version + 1,
            learning_rate=self.schedule.learning_rate(self.step_number + 1),
        )

    def after_step(self, *, is_validated: bool = True) -> None:
        """Do what is due after a training step: validation, next stage of N, reference reset, metrics, checkpoint.

        A loop of the user's own is not `is_validated`. Raises TrainingError after too many non-finite updates,
        ParityError when the engines sampled with other weights than the policy's, and ResourceError when sleeping
        engines hold more and more memory.
        """
        step, settings = self.step_number, self.config.trainer
        fault = mismatch_fault(self.update_metrics, self.config.parity)
        if fault:
            self.row.write(step)
            raise ParityError(fault)
        is_last = step == settings.max_steps
        if is_validated and (is_last or is_due(step, settings.val_interval)):
            self.begin_stage(self.schedule.after_validation(step, self.validate()))
        self.begin_stage(self.schedule.before_step(step, self.batches.carry_over.num_sampled))
        self.reset_reference()
        with self.timeline.stage("record"):
            self.saved.saver.finish(wait=False)
            self.row.add(self.saved.saver.take_seconds())
            self.observers.check_metrics(self.row.metrics)
            self.row.write(step)
        if is_last or is_due(step, settings.save_interval):
            with self.timeline.stage("checkpoint"):
                self.saved.save(self.step_number, wait=is_last)
        try:
            self.handover.check_growth()
        except ResourceError:
            self.saved.save(self.step_number, wait=True)
            raise
        num_skipped = self.progress.num_skipped
        if num_skipped > settings.max_skipped_updates:
            self.saved.saver.finish(wait=True)
            raise TrainingError(
                f"{num_skipped} mini-batches had a non-finite loss or gradient (trainer.max_skipped_updates="
                f"{settings.max_skipped_updates}). Lower policy.optim.lr, or check the metric policy/log_prob_mismatch."
            )

    def begin_stage(self, reason: str | None) -> None:
        """Report that the schedule of N (rollouts per prompt) has moved to another stage, if `reason` is not None."""
        if reason is None:
            return
        stage = self.schedule.stage
        self.observers.event(self.step_number, "stage", reason, float(stage.num_per_prompt))
        self.parts.console.line(
            f"from step {self.step_number + 1}: N = {stage.num_per_prompt} × {stage.prompts_per_step} prompts, "
            f"learning rate {self.schedule.learning_rate(self.step_number + 1):.3g} ({reason})"
        )

    def reset_reference(self) -> None:
        """Make the current weights the reference of the KL term if a setting requires it now."""
        reset = self.resets.due(self.step_number, self.update_metrics)
        if reset:
            with self.timeline.stage("reference reset"), self.handover.policy_phase(Stopwatch(self.timeline)):
                self.parts.policy.reset_reference(self.config.algorithm.reference_reset.clear_optimizer)
            self.resets.note_reset(self.step_number)
            self.observers.event(self.step_number, "reference_reset", reset.reason, reset.value)
            self.parts.console.line(f"reference reset after step {self.step_number} ({reset.reason}: {reset})")
        self.row.add(self.resets.metrics(self.step_number))

    def validate(self) -> float:
        """Evaluate the policy on the held-out prompts and return pass@1. The best weights so far are exported."""
        self.batches.complete()
        pass_at_1, metrics = self.validations.evaluate(self.step_number)
        self.resets.note_validation(pass_at_1)
        self.row.add(metrics)
        return pass_at_1

    def resume(self) -> bool:
        """Continue training from the newest usable checkpoint, or return False when there is none."""
        step = self.saved.resume()
        if step is None:
            return False
        self.step_number = step
        for change in self.parts.prompts.accepted_changes:
            self.observers.event(step, "data_changed", change, 0.0)
        return True
