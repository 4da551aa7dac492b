"""Validations of a run: their history, and the best weights so far as a Hugging Face folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nemo_brorl.core.best_weights import BEST_WEIGHTS, PASS_AT_1, RECORD, REWARD, is_better, record_of
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.files import naming, write_atomically
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.parts import Parts
from nemo_brorl.training.run_folder import code_revision


class Validations:
    """Evaluator on the held-out prompts, which exports the best weights of a trained step so far."""

    def __init__(self, parts: Parts, handover: DeviceHandover) -> None:
        self.parts = parts
        self.handover = handover
        self.best: dict[str, float] | None = None  # the validation whose weights are in hf/
        self.history: list[dict[str, float]] = []  # metrics of each validation, with their step

    def evaluate(self, step: int) -> tuple[float, dict[str, float]]:
        """Evaluate the policy on the held-out prompts after training step `step`, and return pass@1 and all metrics.

        The best weights so far are exported, those of the later step where two are equal. The weights before the first
        step are never exported, because they are the model's own.
        """
        timeline = self.parts.sampler.heartbeat.timeline
        watch = Stopwatch(timeline)
        with watch.measure("validate"):
            result = self.parts.evaluator.evaluate()
        for observer in self.parts.observers:
            observer.validated(step, result.groups)
        metrics = {**result.metrics(), "time/validate_s": watch.seconds["validate"]}
        overall = result.overall
        row = {"step": float(step), PASS_AT_1: overall.pass_at_1, **metrics}
        self.history.append(row)
        line = f"validation after step {step}: pass@1 {overall.pass_at_1:.1%} ± {overall.error_text}"
        if not math.isclose(row.get(REWARD, overall.pass_at_1), overall.pass_at_1, rel_tol=1e-6):
            line += f", mean reward {row[REWARD]:.4g}"
        self.parts.console.line(line)
        if step and (self.best is None or not is_better(self.best, row)):
            self.best = row
            with timeline.stage("export"), self.handover.policy_phase(watch):
                self._export(row)
        return overall.pass_at_1, metrics

    def _export(self, row: Mapping[str, float]) -> None:
        """Write the policy's weights, and the record of their validation once they are whole."""
        run_folder = self.parts.run_folder
        path = run_folder / BEST_WEIGHTS / RECORD
        path.unlink(missing_ok=True)
        self.parts.policy.export(path.parent)
        if path.parent.is_dir():
            base = next((earlier for earlier in self.history if earlier["step"] == 0), None)
            record = {"run": str(run_folder.absolute()), **record_of(base, row), "revision": code_revision()}
            with naming(path):
                write_atomically(path, json.dumps(record, indent=1) + "\n")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the history of validations and the best one from a checkpoint.

        A checkpoint of an earlier version names no best one: it is the first with the largest pass@1.
        """
        self.history = list(state["history"])
        trained = [row for row in self.history if row["step"]]
        self.best = state["best"] if "best" in state else max(trained, key=lambda row: row[PASS_AT_1], default=None)
