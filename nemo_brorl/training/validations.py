"""Validations of a run: their history, and the best weights so far as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.parts import Parts


class Validations:
    """Evaluator on the held-out prompts, which exports the weights with the best pass@1 so far."""

    def __init__(self, parts: Parts, handover: DeviceHandover) -> None:
        self.parts = parts
        self.handover = handover
        self.best_pass_at_1 = -1.0
        self.history: list[dict[str, float]] = []  # metrics of each validation, with their step

    def evaluate(self, step: int) -> tuple[float, dict[str, float]]:
        """Evaluate the policy on the held-out prompts after training step `step`, and return pass@1 and all metrics.

        The best weights so far are exported, except the weights before the first step, because they are the model's
        own.
        """
        timeline = self.parts.sampler.heartbeat.timeline
        watch = Stopwatch(timeline)
        with watch.measure("validate"):
            result = self.parts.evaluator.evaluate()
        metrics = {**result.metrics(), "time/validate_s": watch.seconds["validate"]}
        self.history.append({"step": float(step), **metrics})
        overall = result.overall
        self.parts.console.line(f"validation after step {step}: pass@1 {overall.pass_at_1:.1%} ± {overall.error_text}")
        if step and overall.pass_at_1 > self.best_pass_at_1:
            self.best_pass_at_1 = overall.pass_at_1
            with timeline.stage("export"), self.handover.policy_phase(watch):
                self.parts.policy.export(self.parts.run_folder / "hf")
        return overall.pass_at_1, metrics

    def state_dict(self) -> dict[str, Any]:
        return {"best_pass_at_1": self.best_pass_at_1, "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the history of validations and the best pass@1 from a checkpoint."""
        self.best_pass_at_1 = state["best_pass_at_1"]
        self.history = list(state["history"])
