"""Difficulty of generated tasks that follows success: which level is asked is moved by what its rollouts earn.

A question is of the level reached. Groups of that level are counted. Once there are `WINDOW` of them, their share of
correct rollouts decides: from `promote_from` on the next level is reached, below `demote_below` the one before.
Counting then begins anew, whatever was decided (RLVE, arXiv 2511.07317, which widens the range of levels upwards and
never goes back).

Levels change only between steps, by `PromptStream.record_outcomes`. So question i of a source is a function of the
seed, i and the levels, and a stream is resumed by its position and these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_brorl.config.data import TaskConfig
from nemo_brorl.types import Prompt

WINDOW = 8  # groups of a level before each decision, at least


class TaskLevel:
    """The level that a task has reached, from 0, and what was seen of it."""

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self.reached = 0
        self.num_groups = 0  # of this level, since the last decision
        self.correct = 0.0  # sum of the shares of correct rollouts

    def record_rate(self, prompt: Prompt, rate: float) -> None:
        """Take in a group: the share of its rollouts that were correct."""
        if prompt.level != self.reached:
            return
        self.num_groups += 1
        self.correct += rate

    def decide(self) -> str | None:
        """Move if it is time and success says so; why."""
        if self.num_groups < WINDOW:
            return None
        rate = self.correct / self.num_groups
        before = self.reached
        if rate >= self.task.promote_from:
            self.reached = min(before + 1, len(self.task.levels) - 1)
        elif rate < self.task.demote_below:
            self.reached = max(before - 1, 0)
        reason = f"{rate:.1%} correct in {self.num_groups} groups of level {before}"
        self.num_groups = 0
        self.correct = 0.0
        return None if self.reached == before else reason

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "reached": self.reached,
            "num_groups": self.num_groups,
            "correct": self.correct,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.reached = state["reached"]
        self.num_groups = state["num_groups"]
        self.correct = state["correct"]
