"""When the current weights become the reference of the KL term: a pure decision, taken after every step (ProRL, arXiv
2505.24864, section 3.3: the reference is reset hard, with or without Adam's state, when validation stalls or the KL
term takes over)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.algorithm import ReferenceResetConfig


@dataclass(frozen=True)
class Reset:
    """Why a reference is reset: the setting that asked for it, and the number that reached it."""

    reason: str  # interval, kl_above, patience
    value: float  # steps since the last reset, nats per token, validations in a row without a new best

    def __str__(self) -> str:
        unit = {
            "interval": "steps after the last one",
            "kl_above": "nats per token",
            "patience": "validations without a new best",
        }
        return f"{self.value:.4g} {unit[self.reason]}"


class ReferenceResets:
    """Counts what a reset may wait for. Each step: `note_validation` where there was one, `due`, and `note_reset` after
    a reset."""

    def __init__(self, config: ReferenceResetConfig) -> None:
        self.config = config
        self.num_resets = 0
        self.last_step = 0  # of the last reset; 0: the reference is the initial model
        self.best_pass_at_1 = -1.0
        self.num_stalled = 0  # validations in a row without a new best, since the last reset

    def note_validation(self, pass_at_1: float) -> None:
        """Count a validation; as good as the best is not a new best."""
        if pass_at_1 > self.best_pass_at_1:
            self.best_pass_at_1, self.num_stalled = pass_at_1, 0
        else:
            self.num_stalled += 1

    def due(self, step: int, metrics: Mapping[str, float]) -> Reset | None:
        """Whether to reset after `step`. `policy/kl_to_reference` is the step's mean over tokens, in nats; NaN resets
        nothing."""
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
        """Count a reset after `step`."""
        self.num_resets += 1
        self.last_step, self.num_stalled = step, 0

    def metrics(self, step: int) -> dict[str, float]:
        """How often and how long ago; nothing where no reset is configured."""
        if not (self.config.interval or self.config.patience or self.config.kl_above is not None):
            return {}
        return {"reference/resets": float(self.num_resets), "reference/steps_since_reset": float(step - self.last_step)}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able counters."""
        return {name: getattr(self, name) for name in ("num_resets", "last_step", "best_pass_at_1", "num_stalled")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        for name in self.state_dict():
            setattr(self, name, state[name])
