"""Adapt the difficulty of generated tasks to success: a task's rollouts decide the level of its next questions.

Questions come from the level reached, and its groups are counted. Once there are `WINDOW` groups, their share of
correct rollouts decides. From `promote_from` on the next level follows, below `demote_below` the previous one. Then
counting restarts, whatever was decided. RLVE (arXiv 2511.07317) instead widens the range of levels upwards and never
goes back.

Levels change only between steps, by `PromptStream.record_outcomes`. So question i of a source is a function of the
seed, i and the levels, and a stream is resumed from its position and the levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_brorl.config.data import TaskConfig
from nemo_brorl.types import Prompt

WINDOW = 8  # fewest groups of a level before each decision


class TaskLevel:
    """Difficulty level that a generated task has reached, from 0, with the success counted on it."""

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self.reached = 0
        self.num_groups = 0  # groups of this level since the last decision
        self.correct = 0.0  # sum of the groups' shares of correct rollouts

    def record_rate(self, prompt: Prompt, rate: float) -> None:
        """Count the share of correct rollouts of one prompt towards the next change of the task's difficulty level.

        Prompts that are not of the task's current level do not count.
        """
        if prompt.level != self.reached:
            return
        self.num_groups += 1
        self.correct += rate

    def decide(self) -> str | None:
        """Raise or lower a task's difficulty level if enough prompts were counted and their success rate requires it.

        Returns the reason for a change. None: the level stays.
        """
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
        """Return the JSON-able state of a task's difficulty level for a checkpoint."""
        return {
            "reached": self.reached,
            "num_groups": self.num_groups,
            "correct": self.correct,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a task's difficulty level from a state that `state_dict` returned."""
        self.reached = state["reached"]
        self.num_groups = state["num_groups"]
        self.correct = state["correct"]
