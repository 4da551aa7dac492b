"""Rewards that change as training goes on: dense first, binary later.

A stage lays options over the payload of prompts that are begun from then on, for instance `scoring: all` where programs
earned the share of their tests before. It begins at a step, or once enough rollouts are right. A group keeps the
options it was begun with, also across steps and restarts; held-out prompts keep those of their data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nemo_brorl.config.schema import RewardStageConfig
from nemo_brorl.types import SUCCESS_REWARD, Prompt, ScoredGroup

WINDOW = 4  # steps that a solve rate is the mean of


class RewardStages:
    """The stages of a run, and how many have begun."""

    def __init__(self, stages: Sequence[RewardStageConfig]) -> None:
        self.stages = stages
        self.num_begun = 0
        self.steps_done = 0
        self.solve_rates: list[float] = []  # of the last steps, of the prompts that the next stage is for
        self._begin_due()

    def applied(self, prompt: Prompt) -> Prompt:
        """The prompt with the options of the stages that have begun."""
        options: dict[str, Any] = {}
        for stage in self.stages[: self.num_begun]:
            if stage.concerns(prompt.domain):
                options.update(stage.options)
        if not options:
            return prompt
        return replace(prompt, payload={**prompt.payload, **options})

    def learn(self, sampled: Sequence[ScoredGroup]) -> str | None:
        """Take in a step's groups. Says why a stage begins with the next step, if one does."""
        self.steps_done += 1
        following = self._next
        if following is None:
            return None
        shares: list[float] = []
        for group in sampled:
            if following.concerns(group.prompt.domain):
                is_right = group.rewards >= SUCCESS_REWARD
                shares.append(float(is_right.mean()))
        if shares:
            self.solve_rates.append(float(np.mean(shares)))
            del self.solve_rates[:-WINDOW]
        return self._begin_due()

    def metrics(self) -> dict[str, float]:
        """Number of stages begun; nothing where none are configured."""
        if not self.stages:
            return {}
        return {"reward/stage": float(self.num_begun)}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "num_begun": self.num_begun,
            "steps_done": self.steps_done,
            "solve_rates": self.solve_rates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.num_begun = state["num_begun"]
        self.steps_done = state["steps_done"]
        self.solve_rates = list(state["solve_rates"])

    @property
    def _next(self) -> RewardStageConfig | None:
        if self.num_begun == len(self.stages):
            return None
        return self.stages[self.num_begun]

    def _begin_due(self) -> str | None:
        """Begin the stages that are due for the next step; why the last of them is."""
        reason = None
        while self._next is not None:
            due = self._why_due(self._next)
            if due is None:
                break
            reason = due
            self.num_begun += 1
            self.solve_rates = []
        return reason

    def _why_due(self, stage: RewardStageConfig) -> str | None:
        step = self.steps_done + 1
        if stage.from_step is not None:
            return f"step {step}" if step >= stage.from_step else None
        if len(self.solve_rates) < WINDOW or stage.from_solve_rate is None:
            return None
        rate = float(np.mean(self.solve_rates))
        if rate < stage.from_solve_rate:
            return None
        return f"{rate:.1%} of rollouts right over {WINDOW} steps"
