"""Progress of the ranks as the driver hears of it: it asks while a call takes long, and tells who stands still."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from nemo_brorl.core.timeline import Exchange, Timeline
from nemo_brorl.policy.process.rank_progress import POLL_GROUP, RankAnswer, RankProgress

POLL_EVERY_S = 4.0
ANSWER_S = 1.0  # a rank's own answering thread waits for nothing but the interpreter's lock
SILENT_S = 8.0  # without an answer for longer, a rank counts as one that does not answer
MAX_NAMED = 8


class RankStatus(NamedTuple):
    """The last thing that was heard of a rank."""

    progress: RankProgress | None  # None: nothing yet
    heard_at: float  # time.monotonic()


class ProgressPoll:
    """Ranks with a call under way, and where they said they are. One question is in flight for each at a time."""

    def __init__(self, ranks: Mapping[int, Any]) -> None:
        """`ranks`: actor by rank number."""
        self.ranks = ranks
        self.answers = dict.fromkeys(ranks, RankStatus(None, time.monotonic()))
        self._asked: dict[int, Any] = {}
        self._asked_at = time.monotonic()

    def ask(self) -> bool:
        """Ask all, for a second; whether one has moved since it was asked before. Not asked again within a few
        seconds."""
        if time.monotonic() - self._asked_at < POLL_EVERY_S or not self.ranks:
            return False
        self._asked_at = time.monotonic()
        for number in self.ranks.keys() - self._asked.keys():
            progress = self.ranks[number].progress.options(concurrency_group=POLL_GROUP)
            self._asked[number] = progress.remote()
        references = list(self._asked.values())
        ready, _ = ray.wait(references, num_returns=len(references), timeout=ANSWER_S)
        has_moved = False
        for number, reference in list(self._asked.items()):
            if reference in ready:
                del self._asked[number]
                has_moved |= self._hear(number, reference)
        return has_moved

    def stalled(self, seconds: float) -> list[str]:
        """Who has not moved for longer than this; those first who keep the others waiting. From any thread."""
        return stalled_ranks(dict(self.answers), time.monotonic(), seconds)

    def furthest_behind(self) -> str:
        """Where the rank is that has passed the fewest marks."""
        last: tuple[int, int] | None = None
        text = ""
        for number, answer in self.answers.items():
            if answer.progress is None:
                continue
            order = (answer.progress.num_marks, number)
            if last is None or order < last:
                last = order
                text = f"rank {number} at {answer.progress.place}"
        return text

    def _hear(self, number: int, reference: Any) -> bool:
        """Whether the rank has moved since its last answer."""
        try:
            now: RankProgress = ray.get(reference)
        except RayError:  # the rank is gone; whoever waits for its call is told, and explains
            return False
        before = self.answers[number].progress
        self.answers[number] = RankStatus(now, time.monotonic())
        if before is None:
            return True
        return before.place != now.place or before.num_marks != now.num_marks


def values_of(
    calls: Sequence[tuple[int, Any]],
    answers: Sequence[Any],
    asked_at: float,
    timeline: Timeline,
) -> list[Any]:
    """Values of answers to calls given as (rank, reference); the timeline is told of the work that came along."""
    known_at = timeline.now()
    values = []
    for (number, _), answer in zip(calls, answers, strict=True):
        if not isinstance(answer, RankAnswer):
            values.append(answer)
            continue
        exchange = Exchange(asked_at, answer.received_at, answer.answered_at, known_at)
        timeline.record_work(f"policy rank {number}", answer.work, exchange)
        values.append(answer.value)
    return values


def stalled_ranks(
    answers: Mapping[int, RankStatus],
    now: float,
    seconds: float,
) -> list[str]:
    """Ranks that have not moved for longer than this: first those that do not answer, then those that compute, then
    those that wait for others in a collective, each from the one furthest behind. An idle rank has done its part."""
    silent, computing, waiting = [], [], []
    for number, (progress, heard_at) in answers.items():
        unheard_s = now - heard_at
        if unheard_s > max(seconds, SILENT_S):
            last = f", last heard at {progress.place}" if progress else ""
            silent.append((0, number, f"policy rank {number} does not answer since {unheard_s:.0f} s{last}"))
            continue
        if progress is None or progress.is_idle:
            continue
        unmoved_s = progress.seconds + unheard_s
        if unmoved_s <= seconds:
            continue
        text = f"policy rank {number} at {progress.place} since {unmoved_s:.0f} s"
        if progress.collective:
            waiting.append((progress.num_marks, number, f"{text}, waiting in {progress.collective}"))
        else:
            computing.append((progress.num_marks, number, text))
    return [*_named(silent), *_named(computing), *_named(waiting)]


def _named(entries: Sequence[tuple[int, int, str]]) -> list[str]:
    """Texts of (marks, rank, text) from the fewest marks on, cut off with a count."""
    texts = [text for _, _, text in sorted(entries)]
    if len(texts) <= MAX_NAMED:
        return texts
    return [*texts[:MAX_NAMED], f"and {len(texts) - MAX_NAMED} more like these"]
