"""Poll the progress of ranks while a call takes long, and describe the ranks that are stalled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from nemo_brorl.core.timeline import Exchange, Timeline
from nemo_brorl.policy.process.rank_progress import POLL_GROUP, RankAnswer, RankProgress

POLL_EVERY_S = 4.0
ANSWER_S = 1.0  # seconds for an answer; a rank's answering thread waits only for the interpreter lock
SILENT_S = 8.0  # seconds without an answer after which a rank counts as silent
MAX_NAMED = 8


class RankStatus(NamedTuple):
    """Last known progress of one rank."""

    progress: RankProgress | None  # None: no answer yet
    heard_at: float  # time of the last answer, by time.monotonic()


class ProgressPoll:
    """Progress of the policy ranks that a call is running on. Each rank gets one question at a time."""

    def __init__(self, ranks: Mapping[int, Any]) -> None:
        """Take the Ray actors of the policy ranks, by rank number."""
        self.ranks = ranks
        self.answers = dict.fromkeys(ranks, RankStatus(None, time.monotonic()))
        self._asked: dict[int, Any] = {}
        self._asked_at = time.monotonic()

    def ask(self) -> bool:
        """Ask all policy ranks for their progress, and return whether any rank has progressed since its last answer.

        The wait for answers takes up to `ANSWER_S` seconds. Within `POLL_EVERY_S` seconds of the last question nothing
        is asked.
        """
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
        """Describe the policy ranks that have made no progress for more than `seconds`, the likely causes first.

        Any thread may call this function.
        """
        return stalled_ranks(dict(self.answers), time.monotonic(), seconds)

    def furthest_behind(self) -> str:
        """Return what the policy rank that is furthest behind is doing, or "" before any rank has answered."""
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
        """Store a policy rank's progress report, and return whether the rank has progressed since its last report."""
        try:
            now: RankProgress = ray.get(reference)
        except RayError:  # a dead rank; the caller that waits for its result gets the error and explains it
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
    """Return the results in policy ranks' answers, and record the ranks' work in the timeline of the run.

    `calls` are the pairs of a rank and a Ray reference that were answered. `asked_at` is the time of these calls on the
    timeline's clock.
    """
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
    """Describe the policy ranks that have made no progress for more than `seconds`, the likely causes first.

    First come ranks that do not answer, then those that compute, then those that wait for others in a collective.
    Within each kind the rank that is furthest behind comes first. Idle ranks are left out: they have finished their
    part.
    """
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
    """Return descriptions of stalled ranks, those that are furthest behind first.

    Beyond `MAX_NAMED` descriptions there is only a count of the other ranks. `entries` are (number of progress marks
    passed, rank, description).
    """
    texts = [text for _, _, text in sorted(entries)]
    if len(texts) <= MAX_NAMED:
        return texts
    return [*texts[:MAX_NAMED], f"and {len(texts) - MAX_NAMED} more like these"]
