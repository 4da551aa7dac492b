"""Schedule over training of N, of the prompts per step and of the learning rate.

Stages follow one another. `constant` has one stage. `staged` moves on after each stage's steps, and `budget` after each
stage's sampled rollouts (the best N grows with the budget, IsoCompute, arXiv 2603.12151). `on_plateau` moves on when
validation has stopped rising (ProRL → BroRL). A stage's N sets its prompts per step under the sample budget. The batch
of B rollouts sets the learning rate, by default with its square root, as BroRL does (η = η₀ √(B / B₀), arXiv 2510.01180
section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.policy import OptimConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.rollouts.plateau import PlateauDetector

_EXPONENTS = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}


@dataclass(frozen=True)
class Stage:
    """Batch sizes and learning rate of one stage of the schedule."""

    index: int
    num_per_prompt: int  # N
    prompts_per_step: int
    learning_rate_factor: float  # factor of policy.optim.lr


class RolloutSchedule:
    """The stage that a run is in.

    `before_step` and `after_validation` move to the next stage and return the reason.
    """

    def __init__(self, rollouts: RolloutsConfig, optim: OptimConfig) -> None:
        self.rollouts = rollouts
        self.optim = optim
        self.settings = rollouts.schedule
        self.index = 0
        self.stage_start = 0  # steps done when the current stage started
        self.rollouts_before = 0  # rollouts sampled when the current stage started
        self.detector = PlateauDetector(self.settings.plateau)

    @property
    def stage(self) -> Stage:
        """Return the current stage: its rollouts per prompt N, prompts per step and learning rate factor."""
        num_per_prompt, prompts = self.rollouts.stage_sizes()[self.index]
        exponent = _EXPONENTS[self.settings.learning_rate_scaling]
        base = self.rollouts.stage_samples()[0]
        growth = num_per_prompt * prompts / base
        return Stage(
            index=self.index,
            num_per_prompt=num_per_prompt,
            prompts_per_step=prompts,
            learning_rate_factor=growth**exponent,
        )

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1, in the current stage of the rollout schedule."""
        base = learning_rate(self.optim, step)
        return base * self.stage.learning_rate_factor

    def metrics(self, step: int) -> dict[str, float]:
        """Return metrics of a step's batch size and learning rate."""
        stage = self.stage
        return {
            "policy/learning_rate": self.learning_rate(step),
            "rollouts/num_per_prompt": float(stage.num_per_prompt),
            "rollouts/prompts_per_step": float(stage.prompts_per_step),
        }

    def before_step(self, steps_done: int, num_sampled: int = 0) -> str | None:
        """Move to the next stage of the rollout schedule if the current stage has reached its steps or rollouts.

        Returns the reason, or None if the stage continues. `num_sampled`: rollouts that the run has sampled for all
        batches taken so far.
        """
        if self._is_last:
            return None
        reason = None
        if self.settings.kind == "staged":
            length = self.settings.stages[self.index].num_steps
            if length is not None and steps_done - self.stage_start >= length:
                reason = f"stage of {length} steps is over"
        elif self.settings.kind == "budget":
            budget = self.settings.stages[self.index].num_rollouts
            if budget is not None and num_sampled - self.rollouts_before >= budget:
                reason = f"stage of {budget:,} rollouts is over"
        if reason is None:
            return None
        self.rollouts_before = num_sampled
        return self._advance(steps_done, reason)

    def after_validation(self, steps_done: int, score: float) -> str | None:
        """Move to the next stage of the rollout schedule if the validation score has stopped rising.

        Returns the reason, or None if the stage continues.
        """
        if self.settings.kind != "on_plateau" or self._is_last:
            return None
        reason = self.detector.observe(score)
        if reason is None:
            return None
        return self._advance(steps_done, reason)

    @property
    def _is_last(self) -> bool:
        return self.index + 1 >= len(self.rollouts.stage_sizes())

    def _advance(self, steps_done: int, reason: str) -> str:
        self.index += 1
        self.stage_start = steps_done
        self.detector.reset()
        return reason

    def state_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "stage_start": self.stage_start,
            "rollouts_before": self.rollouts_before,
            "detector": self.detector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the current stage of the rollout schedule from a checkpoint.

        Raises CheckpointError if the settings no longer have this stage.
        """
        stages = len(self.rollouts.stage_sizes())
        if state["index"] >= stages:
            raise CheckpointError(
                f"the run was in stage {state['index'] + 1} of its schedule and the settings have {stages}. Set the"
                " same rollouts.schedule.stages as before, with new ones only at the end."
            )
        self.index = state["index"]
        self.stage_start = state["stage_start"]
        self.rollouts_before = state.get("rollouts_before", 0)
        self.detector.load_state_dict(state["detector"])


def learning_rate(optim: OptimConfig, step: int) -> float:
    """Return the learning rate of step 1, 2, …: linear warm-up over `warmup_steps`, then constant.

    This is the learning rate schedule of ProRLv2 and BroRL.
    """
    return optim.lr * min(1.0, step / (optim.warmup_steps + 1))
