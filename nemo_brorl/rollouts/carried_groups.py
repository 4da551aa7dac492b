"""Groups that a step leaves to the next one.

What happens to a group that was cut depends on how many of its rollouts had finished:

    train/7: 6 of 8, enough to close   the step trains on 6; partial (is_closed), resumed first in the next step:
                                       completed when its 2 have ended, a group of 8 with 2 to train on
    train/8: 2 of 8                    partial (open); admitted first in the next step, where it closes
    train/9: 0 of 8, not a token       restarted; its prompt is sampled again
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.types import Prompt, ScoredGroup


@dataclass(frozen=True)
class CarriedGroups:
    """Groups between two steps, as a checkpoint stores them."""

    kept: tuple[ScoredGroup, ...] = ()  # closed, informative, not trained on yet
    # Cut groups that will be resumed. A step has trained on the closed ones, without their partial rollouts.
    partial: tuple[OpenGroup, ...] = ()
    completed: tuple[
        ScoredGroup, ...
    ] = ()  # closed groups whose partial rollouts have ended and are not trained on yet


class Leftovers:
    """Owner of partial and completed groups, and of prompts to restart, between steps.

    While a batch is filled, `BatchFill` takes groups from here and puts back what it leaves.
    """

    def __init__(self) -> None:
        self.partial: list[OpenGroup] = []
        self.completed: list[ScoredGroup] = []
        self.restarted: list[Prompt] = []

    def drop_older(self, oldest: int) -> None:
        """Drop unfinished groups with tokens that were sampled under weights older than version `oldest`.

        A group that no step has trained on is sampled again from its prompt.
        """
        fresh: list[OpenGroup] = []
        for group in self.partial:
            if (group.oldest_version or 0) >= oldest:
                fresh.append(group)
            elif not group.is_closed:
                self.restart(group.prompt)
        self.partial = fresh

    def take_closed(self) -> list[OpenGroup]:
        """Return and remove the unfinished groups whose ended rollouts a step has trained on already."""
        closed = [group for group in self.partial if group.is_closed]
        self.partial = [group for group in self.partial if not group.is_closed]
        return closed

    def take_open(self, num: int) -> list[OpenGroup]:
        """Return and remove at most `num` unfinished groups that no step has trained on, oldest first."""
        taken: list[OpenGroup] = []
        left: list[OpenGroup] = []
        for group in self.partial:
            if group.is_closed or len(taken) == num:
                left.append(group)
            else:
                taken.append(group)
        self.partial = left
        return taken

    def take_completed(self) -> list[ScoredGroup]:
        """Return and remove the groups whose cut rollouts have ended since a step trained on their other rollouts.

        They are sorted by the uid of their prompt.
        """
        completed = sorted(self.completed, key=lambda group: group.prompt.uid)
        self.completed = []
        return completed

    def take_restarted(self, num: int) -> list[Prompt]:
        """Return and remove at most `num` prompts whose rollouts must be sampled again from the start."""
        restarted = self.restarted[:num]
        self.restarted = self.restarted[num:]
        return restarted

    def put_back(self, group: OpenGroup) -> None:
        """Store a group with rollouts that were cut off, so that the next step resumes them.

        A group without any sampled token is sampled again from its prompt.
        """
        if group.oldest_version is None:
            self.restart(group.prompt)
        else:
            self.partial.append(group)

    def put_completed(self, group: ScoredGroup) -> None:
        """Store a group until a step trains on its late rollouts.

        They have ended after an earlier step trained on the group's other rollouts.
        """
        self.completed.append(group)

    def restart(self, prompt: Prompt) -> None:
        """Queue a prompt whose rollouts must be sampled again from the start."""
        self.restarted.append(prompt)

    def copy_partial(self) -> tuple[OpenGroup, ...]:
        """Return copies of the groups with unfinished rollouts.

        The copies do not change when sampling of the original groups is resumed.
        """
        return tuple(
            replace(group, scored_chunks=list(group.scored_chunks), partial=list(group.partial))
            for group in self.partial
        )
