"""Supervised fine-tuning: train on a batch → measure the held-out loss → save.

A step depends on the data, the seed and its number alone, so a killed run continues bit for bit from its newest
checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.environment_values import as_written

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StopRequest, Stopwatch, is_due
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import CheckpointError, TrainingError
from nemo_brorl.ports import MetricSink, Policy
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState, check_state_keys
from nemo_brorl.training.saver import Saver
from nemo_brorl.training.step_row import StepRow
from nemo_brorl.training.supervised.examples import Example, supervised_plan

STATE_KEYS = {"version", "num_skipped", "best_loss", "history", "trained_on"}


@dataclass(frozen=True)
class Lessons:
    """The examples of each step of a fine-tuning run."""

    batch: Callable[[int], list[Example]]  # step 0, 1, … → its examples
    num_steps: int
    epoch_steps: float | None  # optimizer steps of one epoch; None: examples are generated without end
    held_out: tuple[Example, ...]  # examples for the validation loss; empty: not measured
    fingerprint: str


@dataclass(frozen=True)
class SftParts:
    """The objects that a fine-tuning run works with."""

    policy: Policy
    sink: MetricSink
    checkpoints: Checkpoints
    console: Console
    run_folder: Path


class SftTrainer:
    """The training loop of one fine-tuning run, with its state."""

    def __init__(
        self,
        config: BroRLConfig,
        parts: SftParts,
        lessons: Lessons,
        stop: StopRequest,
    ) -> None:
        self.config = config
        self.sizes = RunSizes.from_config(config)
        self.parts = parts
        self.lessons = lessons
        self.stop = stop
        self.step_number = 0
        self.num_skipped = 0
        self.best_loss = math.inf
        self.history: list[dict[str, float]] = []  # metrics of each validation, with their step
        self.row = StepRow(parts.sink)
        self.saver = Saver(parts.checkpoints, parts.policy, in_background=config.trainer.async_save)

    def fit(self) -> None:
        """Fine-tune up to the last step, or until asked to stop. The state is saved in both cases.

        The folder `hf/` gets the weights with the lowest validation loss, or the last weights if there are no
        validations.
        """
        if self.lessons.held_out and not self.history and self.stop.reason is None:
            self.validate()
            self.row.write(0)
        while self.step_number < self.lessons.num_steps and not self.stop.should_stop():
            self.stop.step_begins()
            self.step()
            self.after_step()
            self.stop.step_ended()
        if self.stop.reason is not None:
            self.save(wait=True)
            self.parts.console.line(
                f"stopped after step {self.step_number} ({self.stop.reason}). Run the same command to resume."
            )

    def step(self) -> None:
        """Run one optimizer step of fine-tuning and print a line about it."""
        watch = Stopwatch()
        examples = self.lessons.batch(self.step_number)
        plan = supervised_plan(
            examples,
            self.config.sft,
            self.sizes,
            seed=self.config.trainer.seed,
            step=self.step_number,
            num_mini_batches=1,
            num_steps=self.lessons.num_steps,
            version=self.step_number + 1,
        )
        with watch.measure("update"):
            update = self.parts.policy.update(plan)
        self.step_number += 1
        self.num_skipped += update.num_skipped
        num_tokens = sum(example.num_tokens for example in examples)
        metrics = {
            "policy/num_updates": float(update.num_updates),
            "policy/num_skipped": float(self.num_skipped),
            "policy/learning_rate": plan.learning_rate,
            "sft/tokens": float(num_tokens),
            "sft/trained_tokens": float(plan.num_loss_tokens(0)),
        }
        if self.lessons.epoch_steps is not None:
            metrics["sft/epoch"] = self.step_number / self.lessons.epoch_steps
        self.row.add(metrics, update.metrics)
        self.row.add_seconds(watch.seconds)
        self.parts.console.line(
            f"step {self.step_number}/{self.lessons.num_steps}  loss {update.metrics['policy/loss']:.4f}"
            f"  gradient norm {update.metrics['policy/grad_norm']:.2f}  learning rate {plan.learning_rate:.2g}"
            f"  {num_tokens / watch.seconds['update']:,.0f} tokens/s"
        )

    def after_step(self) -> None:
        """Do what is due after a fine-tuning step: validation, export, metrics, checkpoint.

        Raises TrainingError after too many non-finite updates.
        """
        settings = self.config.trainer
        is_last = self.step_number == self.lessons.num_steps
        if is_last or is_due(self.step_number, settings.val_interval):
            self.validate()
        # Without validations there is no best step, so the last weights are the result.
        if is_last and not self.history:
            self.parts.policy.export(self.parts.run_folder / "hf")
        self.saver.finish(wait=False)
        self.row.add(self.saver.take_seconds())
        # The row is written before the checkpoint, so that a resumed run has the rows of all steps up to it.
        self.row.write(self.step_number)
        if is_last or is_due(self.step_number, settings.save_interval):
            self.save(wait=is_last)
        if self.num_skipped > settings.max_skipped_updates:
            self.saver.finish(wait=True)
            raise TrainingError(
                f"{self.num_skipped} steps had a non-finite loss or gradient (trainer.max_skipped_updates="
                f"{settings.max_skipped_updates}). Lower sft.lr."
            )

    def validate(self) -> None:
        """Measure the loss on held-out examples, and export the best weights so far as a Hugging Face folder."""
        if not self.lessons.held_out:
            return
        watch = Stopwatch()
        with watch.measure("validate"):
            loss = held_out_loss(self.parts.policy, self.lessons.held_out)
        self.history.append({"step": float(self.step_number), "sft/val_loss": loss})
        self.row.add({"sft/val_loss": loss})
        self.row.add_seconds(watch.seconds)
        self.parts.console.line(f"validation after step {self.step_number}: loss {loss:.4f}")
        if self.step_number and loss < self.best_loss:
            self.best_loss = loss
            self.parts.policy.export(self.parts.run_folder / "hf")

    def save(self, wait: bool) -> None:
        """Write a checkpoint of the current fine-tuning step. Raises CheckpointError."""
        state = {
            "version": self.step_number,
            "num_skipped": self.num_skipped,
            "best_loss": self.best_loss,
            "history": self.history,
            "trained_on": trained_on(self.config, self.lessons),
        }
        self.saver.save(RunState(self.step_number, state, CarriedGroups()), wait)

    def resume(self) -> bool:
        """Continue fine-tuning from the newest usable checkpoint, or return False when there is none.

        Raises CheckpointError when the checkpoint was trained on other data or with other settings.
        """
        run = self.parts.checkpoints.load_newest(self.parts.policy.load)
        if run is None:
            return False
        check_state_keys(run.state, STATE_KEYS)
        check_same_lessons(self.parts.checkpoints.folder, run.state["trained_on"], self.config, self.lessons)
        self.step_number = run.step
        self.num_skipped = run.state["num_skipped"]
        self.best_loss = run.state["best_loss"]
        self.history = run.state["history"]
        return True


def trained_on(config: BroRLConfig, lessons: Lessons) -> dict[str, Any]:
    """Return the fingerprint of the data and the settings that a resumed fine-tuning run must share."""
    settings = dataclasses.asdict(as_written(config.sft))
    return {"data": lessons.fingerprint, "num_steps": lessons.num_steps, **settings}


def check_same_lessons(checkpoints: Path, before: Mapping[str, Any], config: BroRLConfig, lessons: Lessons) -> None:
    """Raise CheckpointError if a run that recorded `before` had other data or other settings of fine-tuning."""
    now = trained_on(config, lessons)
    changed = [f"{name} was {before.get(name)!r}, now {now[name]!r}" for name in now if before.get(name) != now[name]]
    if changed:
        raise CheckpointError(
            f"{checkpoints} belongs to another fine-tuning run (sft: {'; '.join(changed)}). Set "
            "exp_manager.explicit_log_dir to a new folder, or restore the old values to continue that run."
        )


def held_out_loss(policy: Policy, examples: Sequence[Example]) -> float:
    """Return the mean of −log p over the trained tokens of held-out examples, in nats."""
    prompts = [example.prompt_ids.tolist() for example in examples]
    responses = [example.response_ids.tolist() for example in examples]
    total = 0.0
    num = 0
    for example, log_probs in zip(examples, policy.log_probs(prompts, responses), strict=True):
        trained = log_probs if example.has_loss is None else log_probs[example.has_loss]
        total -= float(trained.sum(dtype="float64"))
        num += len(trained)
    return total / num
