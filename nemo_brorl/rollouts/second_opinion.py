"""Second opinion about the successes of groups that have only one or two.

There a false positive costs most: the advantage of a lone success is about √N standard deviations, so that one answer
which fooled the verifier is pushed harder than any right one of an easier prompt. A second verifier is asked for these
successes only, once all rollouts of a group are in; where it does not agree, the reward is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from nemo_brorl.config.rewards import SecondOpinionConfig
from nemo_brorl.ports import Verifier
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.types import SUCCESS_REWARD, Prompt, RolloutChunk, ScoredChunk

MARK = "#second-opinion"  # behind the uid of a prompt that the second verifier is asked about


@dataclass
class Review:
    """A group whose successes are looked at again."""

    group: OpenGroup
    waiting: dict[int, int]  # place among the group's parts, by first index of the chunk


class SecondOpinions:
    """Groups under review: `ask`, then `receive` what the verifier says until a group comes back."""

    def __init__(self, settings: SecondOpinionConfig, verifier: Verifier) -> None:
        self.settings = settings
        self.verifier = verifier
        self.num_asked = 0  # successes
        self.num_overruled = 0
        self._reviews: dict[str, Review] = {}  # by uid as it is marked
        self._seen: set[tuple[str, int]] = set()  # chunks that were looked at: uid, first index

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under review."""
        return not self._reviews

    def ask(self, group: OpenGroup) -> bool:
        """Begin to review a settled group; False: there is nothing to review."""
        if self.settings.verifier is None:
            return False
        num_successes = 0
        for part in group.parts:
            num_successes += len(successes(part))
        if not 0 < num_successes <= self.settings.max_successes:
            return False
        prompt = self.asked_prompt(group.prompt)
        waiting: dict[int, int] = {}
        for place, part in self._new_parts(group):
            first = int(part.chunk.indices[0])
            waiting[first] = place
            self._seen.add((group.uid, first))
            rows = successes(part)
            self.num_asked += len(rows)
            request = replace(part.chunk.request, prompt=prompt)
            chunk = replace(part.chunk, request=request)
            self.verifier.submit(chunk, rows)
        if not waiting:
            return False
        self._reviews[prompt.uid] = Review(group, waiting)
        return True

    def asked_prompt(self, prompt: Prompt) -> Prompt:
        """The prompt as the second verifier gets it."""
        assert self.settings.verifier is not None, "there is no second verifier"
        return replace(
            prompt,
            uid=prompt.uid + MARK,
            verifier=self.settings.verifier,
            payload=self.settings.payload(prompt.payload),
        )

    def is_review(self, chunk: RolloutChunk) -> bool:
        """Whether a chunk is one that the second verifier was asked about."""
        return chunk.request.prompt.uid in self._reviews

    def receive(self, opinion: ScoredChunk) -> OpenGroup | None:
        """Overrule the successes that do not hold. Returns the group once all of it was looked at."""
        chunk = opinion.chunk
        uid = chunk.request.prompt.uid
        review = self._reviews[uid]
        place = review.waiting.pop(int(chunk.indices[0]))
        part = review.group.parts[place]
        rewards = part.rewards.copy()
        for row in successes(part):
            if opinion.rewards[row] < self.settings.holds_from:
                rewards[row] = 0.0
                self.num_overruled += 1
        review.group.parts[place] = replace(
            part,
            rewards=rewards,
            num_failed=part.num_failed + opinion.num_failed,
        )
        if review.waiting:
            return None
        del self._reviews[uid]
        return review.group

    def metrics(self) -> dict[str, float]:
        """Counts since it was made; nothing where no second verifier is set."""
        if self.settings.verifier is None:
            return {}
        return {
            "reward/second_opinions": float(self.num_asked),
            "reward/overruled": float(self.num_overruled),
        }

    def _new_parts(self, group: OpenGroup) -> Iterator[tuple[int, ScoredChunk]]:
        """Parts with successes that were not looked at, with their places."""
        for place, part in enumerate(group.parts):
            if not len(part.rewards):
                continue
            first = int(part.chunk.indices[0])
            if successes(part) and (group.uid, first) not in self._seen:
                yield place, part


def successes(part: ScoredChunk) -> list[int]:
    """Rows of the responses that earned in full."""
    rows: list[int] = np.flatnonzero(part.rewards >= SUCCESS_REWARD).tolist()
    return rows
