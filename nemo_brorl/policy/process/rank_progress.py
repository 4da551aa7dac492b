"""Progress of one rank: noted by the thread that computes, and read while it may hang.

On a rank, `PROGRESS` is marked as work goes on, and a second thread of the actor reads it; what took how long goes
along with the rank's next answer. No torch here: the driver reads the answers (`driver.stalled_ranks`).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from nemo_brorl.core.timeline import Work

# Whoever is in one of these files of torch and Megatron waits for other ranks.
COLLECTIVE_FILES = ("distributed_c10d.py", "param_and_grad_buffer.py", "p2p_communication.py")
MAX_FRAMES = 12  # looked at from the innermost on
IDLE = "idle"

POLL_GROUP = "progress"  # the concurrency group in which a rank answers

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

    def mark_part(self, name: str, **details: Any) -> None:
        """The method has come to this part. `details` are small and JSON-able, for the timeline."""
        self._end_part()
        self._part = name
        self._part_began_at = time.time()
        self._part_details = details
        self._step = ""
        self._count()

    def mark_step(self, name: str) -> None:
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
