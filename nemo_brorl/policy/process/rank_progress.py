"""Record the progress of one rank in its computing thread, to be read by another thread while it may hang.

`PROGRESS` is marked as work advances, and a second thread of the actor reads it. Durations travel with the rank's next
answer. It does not import torch, because the driver reads the answers (`driver.stalled_ranks`).
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

# Files of torch and Megatron whose functions wait for other ranks.
COLLECTIVE_FILES = ("distributed_c10d.py", "param_and_grad_buffer.py", "p2p_communication.py")
MAX_FRAMES = 12  # innermost stack frames that are searched for a collective
IDLE = "idle"

POLL_GROUP = "progress"  # Ray concurrency group in which a rank reports its progress

MAX_WORK = 2000  # newest pieces of work that a rank keeps for its next answer
SHORTEST_S = 1e-3  # seconds; shorter parts are not recorded

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class RankProgress(NamedTuple):
    """Progress of one policy rank: what it is doing, and since when."""

    place: str  # method, part and step, joined by commas
    num_marks: int  # marks passed since the method started
    seconds: float  # seconds since the last mark
    is_idle: bool
    collective: str | None  # function of torch.distributed or of Megatron's exchange that it waits in
    process: int  # process id


class RankAnswer(NamedTuple):
    """Result of a call to a rank's Learner, with the work that the rank has done since its last answer."""

    value: Any
    received_at: float  # unix seconds of the rank's clock
    answered_at: float  # unix seconds of the rank's clock
    work: tuple[Work, ...]


class ProgressMarks:
    """Progress marks of one process. Ranks that do equal work pass equally many marks, so counts can be compared."""

    def __init__(self) -> None:
        self._thread = 0
        self._method = IDLE
        self._part = ""
        self._step = ""
        self._num_marks = 0
        self._marked_at = time.monotonic()
        self._work: deque[Work] = deque(maxlen=MAX_WORK)
        self._part_began_at = 0.0  # start of the part in unix seconds
        self._part_details: Mapping[str, Any] = {}

    @contextmanager
    def method(self, name: str) -> Iterator[None]:
        """Record that the calling thread runs the policy rank's method `name` while this context is open."""
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
        """Record that the method which this policy rank runs has reached the part called `name`, such as a mini-batch.

        `details` are small and JSON-able, for the timeline.
        """
        self._end_part()
        self._part = name
        self._part_began_at = time.time()
        self._part_details = details
        self._step = ""
        self._count()

    def mark_step(self, name: str) -> None:
        """Record that this policy rank has reached the step called `name`, such as a micro-batch, of its method."""
        self._step = name
        self._count()

    def read(self) -> RankProgress:
        """Return what the computing thread of a policy rank is doing. Another thread calls this."""
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
        """Return a policy rank's answer to a call, with a record of the rank's work since its last answer.

        `received_at` is the time at which the call arrived, in unix seconds.
        """
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


PROGRESS = ProgressMarks()  # marks of this process, which runs one rank


def tracked(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a method of a policy rank so that the rank's progress reports name it while it runs."""

    @functools.wraps(method)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with PROGRESS.method(method.__name__):
            return method(*args, **kwargs)

    return wrapper


def _collective_of(frame: FrameType | None) -> str | None:
    """Return the outermost communication function of torch or Megatron among a thread's innermost frames, or None."""
    collective = None
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        file_name = frame.f_code.co_filename.rpartition("/")[2]
        if file_name in COLLECTIVE_FILES:
            collective = frame.f_code.co_name
        frame = frame.f_back
    return collective
