"""Progress of the ranks: noted by the thread that computes, read while it may hang, and told as who stands still.

On a rank, `PROGRESS` is marked as work goes on, and a second thread of the actor reads it; what took how long goes
along with the rank's next answer. On the driver, `ProgressPoll` asks for it while a call takes long. No torch here.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import ray
from ray.exceptions import RayError

from nemo_brorl.core.timeline import Exchange, Timeline, Work

# Whoever is in one of these files of torch and Megatron waits for other ranks.
COLLECTIVE_FILES = ("distributed_c10d.py", "param_and_grad_buffer.py", "p2p_communication.py")
MAX_FRAMES = 12  # looked at from the innermost on
IDLE = "idle"

POLL_GROUP = "progress"  # the concurrency group in which a rank answers
POLL_EVERY_S = 4.0
ANSWER_S = 1.0  # a rank's own answering thread waits for nothing but the interpreter's lock
SILENT_S = 8.0  # without an answer for longer, a rank counts as one that does not answer
MAX_NAMED = 8

MAX_WORK = 2000  # pieces that a rank keeps for its next answer, the newest ones
SHORTEST_S = 1e-3  # a part that took less is none

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class RankProgress(NamedTuple):
    """Where a rank is."""

    place: str  # method, part of it, step of that
    num_marks: int  # passed since the method began
    seconds: float  # since the last mark
    is_idle: bool
    collective: str | None  # function of torch.distributed or of Megatron's exchange that it waits in
    process: int  # its id


class RankAnswer(NamedTuple):
    """What a rank's Learner returned, and what the rank has done since its last answer."""

    value: Any
    received_at: float  # unix seconds of the rank's clock, as is the next
    answered_at: float
    work: tuple[Work, ...]


class ProgressMarks:
    """The marks of one process. Ranks that do the same work pass the same number of marks, so counts can be
    compared."""

    def __init__(self) -> None:
        self._thread = 0
        self._method = IDLE
        self._part = ""
        self._step = ""
        self._num_marks = 0
        self._marked_at = time.monotonic()
        self._work: deque[Work] = deque(maxlen=MAX_WORK)
        self._part_began_at = 0.0  # unix seconds
        self._part_details: Mapping[str, Any] = {}

    @contextmanager
    def method(self, name: str) -> Iterator[None]:
        """Inside, the calling thread is in this method."""
        self._thread = threading.get_ident()
        self._begin(name)
        began_at = time.time()
        try:
            yield
        finally:
            self._end_part()
            self._work.append(Work(name, began_at, time.time()))
            self._begin(IDLE)

    def part(self, name: str, **details: Any) -> None:
        """The method has come to this part. `details` are small and JSON-able, for the timeline."""
        self._end_part()
        self._part = name
        self._part_began_at = time.time()
        self._part_details = details
        self._step = ""
        self._count()

    def step(self, name: str) -> None:
        """The part has come to this step."""
        self._step = name
        self._count()

    def read(self) -> RankProgress:
        """Where the computing thread is; called by another."""
        named = [self._method, self._part, self._step]
        place = ", ".join(name for name in named if name)
        seconds = time.monotonic() - self._marked_at
        frame = sys._current_frames().get(self._thread)
        return RankProgress(
            place,
            self._num_marks,
            seconds,
            is_idle=self._method == IDLE,
            collective=_collective_of(frame),
            process=os.getpid(),
        )

    def answer(self, value: Any, received_at: float) -> RankAnswer:
        """An answer to what was asked at `received_at`, with all work since the last one."""
        work = tuple(self._work)
        self._work.clear()
        return RankAnswer(value, received_at, time.time(), work)

    def _end_part(self) -> None:
        now = time.time()
        if self._part and now - self._part_began_at >= SHORTEST_S:
            self._work.append(Work(self._part, self._part_began_at, now, details=self._part_details))
        self._part = ""

    def _begin(self, method: str) -> None:
        self._method = method
        self._part = ""
        self._step = ""
        self._num_marks = 0
        self._marked_at = time.monotonic()

    def _count(self) -> None:
        self._num_marks += 1
        self._marked_at = time.monotonic()


PROGRESS = ProgressMarks()  # of this process, which is one rank


def tracked(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method of a rank that is named in `PROGRESS` while it runs."""

    @functools.wraps(method)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with PROGRESS.method(method.__name__):
            return method(*args, **kwargs)

    return wrapper


def _collective_of(frame: FrameType | None) -> str | None:
    """The outermost function of torch's or Megatron's communication among a thread's innermost frames."""
    found = None
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        file_name = frame.f_code.co_filename.rpartition("/")[2]
        if file_name in COLLECTIVE_FILES:
            found = frame.f_code.co_name
        frame = frame.f_back
    return found


class Answer(NamedTuple):
    """The last thing that was heard of a rank."""

    progress: RankProgress | None  # None: nothing yet
    heard_at: float  # time.monotonic()


class ProgressPoll:
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
        self.answers[number] = Answer(now, time.monotonic())
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
        timeline.note(f"policy rank {number}", answer.work, exchange)
        values.append(answer.value)
    return values


def stalled_ranks(
    answers: Mapping[int, Answer],
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
