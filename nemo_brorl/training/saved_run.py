"""The state of a run in its checkpoints: the one list of everything that is saved and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_brorl.algorithm.whitening import CarriedMoments
from nemo_brorl.config.trainer import TrainerConfig
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.rollouts.batches import Batches
from nemo_brorl.rollouts.carry_over import SamplerState
from nemo_brorl.training.checkpoint import CutStep, RunState, check_state_keys
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.observers import Observers
from nemo_brorl.training.parts import Parts
from nemo_brorl.training.saver import Saver


class Stateful(Protocol):
    """A part of the training loop that has a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a part of the training loop, such as its validations, for a checkpoint, JSON-able."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a part of the training loop, such as its validations, from the state that `state_dict` returned."""


@dataclass
class Progress:
    """Progress of a run: the version of its weights, its skipped updates, and what whitening carries over steps."""

    version: int = 0  # version of the policy's weights
    num_skipped: int = 0  # mini-batches with a non-finite loss or gradient
    whitening: CarriedMoments = field(default_factory=CarriedMoments)

    def metrics(self) -> dict[str, float]:
        """Return the number of skipped mini-batches of the whole run, as a metric."""
        return {"policy/num_skipped": float(self.num_skipped)}

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "num_skipped": self.num_skipped, "whitening": self.whitening.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the progress from a checkpoint. Older ones have no moments of whitening, which then begin anew."""
        self.version = state["version"]
        self.num_skipped = state["num_skipped"]
        if "whitening" in state:
            self.whitening.load_state_dict(state["whitening"])


class SavedRun:
    """Writer of a run's checkpoints, and finder of the one to resume from."""

    def __init__(
        self,
        settings: TrainerConfig,
        parts: Parts,
        batches: Batches,
        observers: Observers,
        handover: DeviceHandover,
        stateful: Mapping[str, Stateful],
    ) -> None:
        """Collect the parts of the training loop whose state a checkpoint holds.

        `stateful` holds the other parts besides `batches` and `observers`, by name.
        """
        self.parts = parts
        self.batches = batches
        self.observers = observers
        self.handover = handover
        self.stateful = stateful
        self.saver = Saver(parts.checkpoints, parts.policy, in_background=settings.async_save)

    def save(self, step: int, wait: bool, at: SamplerState | None = None) -> None:
        """Write a checkpoint of training step `step`. With `wait`, return once the checkpoint is complete.

        `at` is the state of rollout sampling to save, None for the current one. Raises CheckpointError.
        """
        self.batches.complete()
        self.observers.before_save()
        sampling = at or self.batches.carry_over.state()
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.stateful.items()}
        state["observers"] = self.observers.state_dict()
        state["sampling"] = {"prompts": sampling.prompts, "carry_over": sampling.carry_over}
        with self.handover.policy_phase(Stopwatch(self.parts.sampler.heartbeat.timeline)):
            self.saver.save(RunState(step, state, sampling.groups), wait)

    def save_before_cut_step(self, step: int, reason: str) -> None:
        """Write a checkpoint after step `step`, and save the rollouts of the next step, which had to stop early."""
        state_before, chunks = self.batches.cut()
        self.save(step, wait=True, at=state_before)
        num_kept = self.parts.checkpoints.save_cut_step(CutStep(step, chunks))
        self.parts.console.line(
            f"step {step + 1} stopped: {reason}. {num_kept:,} rollouts were saved, and the step will restart with them."
        )

    def resume(self) -> int | None:
        """Load the newest usable checkpoint and return its step, or None when there is none. Raises CheckpointError."""
        run = self.parts.checkpoints.load_newest(self.parts.policy.load)
        if run is None:
            self.observers.resume(None, {})
            return None
        check_state_keys(run.state, {*self.stateful, "observers", "sampling"})
        for name, part in self.stateful.items():
            part.load_state_dict(run.state[name])
        self.observers.resume(run.step, run.state["observers"])
        sampling = SamplerState(**run.state["sampling"], groups=run.groups)
        self.batches.carry_over.load_state(sampling, self.parts.checkpoints.load_cut_step(run.step))
        return run.step
