"""Which ranks keep the others waiting: asked while a call takes long, told in one line. Driver side, without torch."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from nemo_brorl.policy.whereabouts import Whereabouts

ASK = "ask"  # the concurrency group in which a rank answers
EVERY_S = 4.0
ANSWER_S = 1.0  # a rank's own answering thread waits for nothing but the interpreter's lock
SILENT_S = 8.0  # without an answer for longer, a rank counts as one that does not answer
MAX_NAMED = 8


class Answer(NamedTuple):
    """The last thing that was heard of a rank."""

    where: Whereabouts | None  # None: nothing yet
    heard_at: float  # time.monotonic()


class RollCall:
    """Ranks with a call under way, and where they said they are. One question is in flight for each at a time."""

    def __init__(self, ranks: Mapping[int, Any]) -> None:
        """`ranks`: actor by rank number."""
        self.ranks = ranks
        self.answers = dict.fromkeys(ranks, Answer(None, time.monotonic()))
        self._asked: dict[int, Any] = {}
        self._asked_at = time.monotonic()

    def ask(self) -> bool:
        """Ask all, for a second; whether one has moved since it was asked before. Not asked again within a few
        seconds."""
        if time.monotonic() - self._asked_at < EVERY_S or not self.ranks:
            return False
        self._asked_at = time.monotonic()
        for number in self.ranks.keys() - self._asked.keys():
            self._asked[number] = self.ranks[number].where.options(concurrency_group=ASK).remote()
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=ANSWER_S)
        moved = [self._hear(number, reference) for number, reference in list(self._asked.items()) if reference in ready]
        return any(moved)

    def stalled(self, seconds: float) -> list[str]:
        """Who has not moved for longer than this; those first who keep the others waiting. From any thread."""
        return late_ranks(dict(self.answers), time.monotonic(), seconds)

    def progress(self) -> str:
        """Where the rank is that is furthest behind."""
        known = [
            (answer.where.num_marks, number, answer.where.place)
            for number, answer in self.answers.items()
            if answer.where
        ]
        return "rank {1} at {2}".format(*min(known)) if known else ""

    def _hear(self, number: int, reference: Any) -> bool:
        del self._asked[number]
        try:
            where = ray.get(reference)
        except RayError:  # the rank is gone; whoever waits for its call is told, and explains
            return False
        before = self.answers[number].where
        self.answers[number] = Answer(where, time.monotonic())
        return before is None or (before.place, before.num_marks) != (where.place, where.num_marks)


def late_ranks(answers: Mapping[int, Answer], now: float, seconds: float) -> list[str]:
    """Ranks that have not moved for longer than this: first those that do not answer, then those that compute, then
    those that wait for others in a collective, each from the one furthest behind. An idle rank has done its part."""
    silent, computing, waiting = [], [], []
    for number, (where, heard_at) in answers.items():
        if now - heard_at > max(seconds, SILENT_S):
            last = f", last heard at {where.place}" if where else ""
            silent.append((0, number, f"policy rank {number} does not answer since {now - heard_at:.0f} s{last}"))
            continue
        if where is None or where.is_idle or where.seconds + now - heard_at <= seconds:
            continue
        text = f"policy rank {number} at {where.place} since {where.seconds + now - heard_at:.0f} s"
        if where.collective:
            waiting.append((where.num_marks, number, f"{text}, waiting in {where.collective}"))
        else:
            computing.append((where.num_marks, number, text))
    return [*_named(silent), *_named(computing), *_named(waiting)]


def _named(entries: Collection[tuple[int, int, str]]) -> list[str]:
    texts = [text for *_, text in sorted(entries)]
    return texts if len(texts) <= MAX_NAMED else [*texts[:MAX_NAMED], f"and {len(texts) - MAX_NAMED} more like these"]
