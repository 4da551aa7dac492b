"""Decide after every step whether the current weights become the reference of the KL term.

ProRL (arXiv 2505.24864, section 3.3) resets the reference, with or without Adam's state, when validation stalls or the
KL term takes over. The decision is pure: it touches no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.algorithm import ReferenceResetConfig


@dataclass(frozen=True)
class Reset:
    """Reason for a reset of the reference: the setting that caused it, and the number that reached it."""

    reason: str  # setting: interval, kl_above or patience
    # Steps since the last reset, nats per token, or validations in a row without a new best.
    value: float

    def __str__(self) -> str:
        unit = {
            "interval": "steps after the last one",
            "kl_above": "nats per token",
            "patience": "validations without a new best",
        }
        return f"{self.value:.4g} {unit[self.reason]}"


class ReferenceResets:
    """Counters that decide when the reference of the KL term is reset.

    In each step call `note_validation` if there was a validation, then `due`, and `note_reset` after a reset.
    """

    def __init__(self, config: ReferenceResetConfig) -> None:
        self.config = config
        self.num_resets = 0
        self.last_step = 0  # step of the last reset; 0: the reference is the initial model
        self.best_pass_at_1 = -1.0
        self.num_stalled = 0  # validations in a row without a new best, since the last reset

    def note_validation(self, pass_at_1: float) -> None:
        """Record a validation's pass@1 for the rule that resets the KL reference.

        The reference policy is reset after `patience` validations without a new best. A pass@1 equal to the best one is
        no new best.
        """
        if pass_at_1 > self.best_pass_at_1:
            self.best_pass_at_1, self.num_stalled = pass_at_1, 0
        else:
            self.num_stalled += 1

    def due(self, step: int, metrics: Mapping[str, float]) -> Reset | None:
        """Return the reason to reset the KL term's reference policy after step `step`, or None if no reset is due.

        Reads `policy/kl_to_reference` from the step's metrics: the mean over tokens, in nats. A KL of NaN is no reason
        for a reset.
        """
        config = self.config
        kl = metrics.get("policy/kl_to_reference", 0.0)
        if config.kl_above is not None and kl > config.kl_above:
            return Reset("kl_above", kl)
        if config.patience > 0 and self.num_stalled >= config.patience:
            return Reset("patience", float(self.num_stalled))
        if config.interval > 0 and step % config.interval == 0:
            return Reset("interval", float(step - self.last_step))
        return None

    def note_reset(self, step: int) -> None:
        """Record that the KL term's reference policy was reset to the current weights after step `step`."""
        self.num_resets += 1
        self.last_step, self.num_stalled = step, 0

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of KL reference resets: their number, and the steps since the last one.

        The result is empty if the settings configure no resets.
        """
        if not (self.config.interval or self.config.patience or self.config.kl_above is not None):
            return {}
        return {"reference/resets": float(self.num_resets), "reference/steps_since_reset": float(step - self.last_step)}

    def state_dict(self) -> dict[str, Any]:
        """Return the counters that decide about resets of the KL reference, as a JSON-able dict."""
        return {name: getattr(self, name) for name in ("num_resets", "last_step", "best_pass_at_1", "num_stalled")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters that decide about resets of the KL reference from a result of `state_dict`."""
        for name in self.state_dict():
            setattr(self, name, state[name])
