"""Groups that a step leaves to the next. A group that was cut goes on there by the number of its rollouts that had
finished.

    train/7: 6 of 8, enough to close   the step learns from 6; partial (is_closed), resumed first in the next step:
                                       completed when its 2 have ended, a group of 8 with 2 to learn from
    train/8: 2 of 8                    partial (open); admitted first in the next step, where it closes
    train/9: 0 of 8, not a token       restarted; its prompt is handed out once more
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.types import Prompt, ScoredGroup


@dataclass(frozen=True)
class CarriedGroups:
    """Groups between two steps, as a checkpoint holds them."""

    kept: tuple[ScoredGroup, ...] = ()  # closed, informative, not learnt from yet
    # cut, to be sampled on; some are closed, learnt from without their partial ones
    partial: tuple[OpenGroup, ...] = ()
    completed: tuple[ScoredGroup, ...] = ()  # closed before; their partial rollouts have ended, not learnt from yet


class Leftovers:
    """The only owner of partial and completed groups, and of prompts to restart, between steps. While a batch is
    filled, `BatchFill` takes from here what it begins with and puts back what it leaves."""

    def __init__(self) -> None:
        self.partial: list[OpenGroup] = []
        self.completed: list[ScoredGroup] = []
        self.restarted: list[Prompt] = []

    def drop_older(self, oldest: int) -> None:
        """Give up groups with tokens of weights older than version `oldest`: closed ones are dropped, open ones start
        anew."""
        fresh: list[OpenGroup] = []
        for group in self.partial:
            if (group.oldest_version or 0) >= oldest:
                fresh.append(group)
            elif not group.is_closed:
                self.restart(group.prompt)
        self.partial = fresh

    def take_closed(self) -> list[OpenGroup]:
        """Return partial groups that a step has learnt from already."""
        closed = [group for group in self.partial if group.is_closed]
        self.partial = [group for group in self.partial if not group.is_closed]
        return closed

    def take_open(self, num: int) -> list[OpenGroup]:
        """Return at most `num` partial groups that are to be admitted again, the oldest first."""
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
        """Return completed groups in the order of their prompts' uids."""
        completed = sorted(self.completed, key=lambda group: group.prompt.uid)
        self.completed = []
        return completed

    def take_restarted(self, num: int) -> list[Prompt]:
        """Return at most `num` prompts that are to be handed out once more."""
        restarted = self.restarted[:num]
        self.restarted = self.restarted[num:]
        return restarted

    def put_back(self, group: OpenGroup) -> None:
        """Keep a group that was cut; one without a token starts anew."""
        if group.oldest_version is None:
            self.restart(group.prompt)
        else:
            self.partial.append(group)

    def put_completed(self, group: ScoredGroup) -> None:
        """Keep a group that was closed before, now with more rollouts, until a step takes it."""
        self.completed.append(group)

    def restart(self, prompt: Prompt) -> None:
        """Hand a prompt out once more."""
        self.restarted.append(prompt)

    def copy_partial(self) -> tuple[OpenGroup, ...]:
        """Return partial groups that do not change when the originals are sampled on."""
        return tuple(
            replace(group, scored_chunks=list(group.scored_chunks), partial=list(group.partial))
            for group in self.partial
        )
