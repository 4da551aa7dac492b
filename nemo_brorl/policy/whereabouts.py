"""Where a rank is in its work: noted by the thread that computes, read by another while the first may hang. Plain
Python."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, ParamSpec, TypeVar

# Whoever is in one of these files of torch and Megatron waits for other ranks.
COLLECTIVE_FILES = ("distributed_c10d.py", "param_and_grad_buffer.py", "p2p_communication.py")
MAX_FRAMES = 12  # looked at from the innermost on
IDLE = "idle"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Whereabouts(NamedTuple):
    """Where a rank is."""

    place: str  # method, part of it, step of that
    num_marks: int  # passed since the method began
    seconds: float  # since the last mark
    is_idle: bool
    collective: str | None  # what of torch.distributed or Megatron's exchange it waits in
    process: int  # its id


class Track:
    """The marks of one process. Ranks that do the same work pass the same number of marks, so counts can be
    compared."""

    def __init__(self) -> None:
        self._thread = 0
        self._path = (IDLE, "", "")  # method, part, step
        self._num_marks = 0
        self._marked_at = time.monotonic()

    def enter(self, method: str) -> None:
        """The calling thread begins with a method."""
        self._thread = threading.get_ident()
        self._mark((method, "", ""), 0)

    def leave(self) -> None:
        """It has ended."""
        self._mark((IDLE, "", ""), 0)

    def part(self, name: str) -> None:
        """The method has come to this part."""
        self._mark((self._path[0], name, ""), self._num_marks + 1)

    def step(self, name: str) -> None:
        """The part has come to this step."""
        self._mark((*self._path[:2], name), self._num_marks + 1)

    def read(self) -> Whereabouts:
        """Where the computing thread is; called by another."""
        place = ", ".join(name for name in self._path if name)
        frames = _frames(sys._current_frames().get(self._thread))
        collective = next((name for file, name in reversed(frames) if file in COLLECTIVE_FILES), None)
        return Whereabouts(
            place, self._num_marks, time.monotonic() - self._marked_at, self._path[0] == IDLE, collective, os.getpid()
        )

    def _mark(self, path: tuple[str, str, str], num_marks: int) -> None:
        self._path, self._num_marks, self._marked_at = path, num_marks, time.monotonic()


TRACK = Track()  # of this process, which is one rank


def tracked(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method of a rank that says where it is."""

    @functools.wraps(method)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        TRACK.enter(method.__name__)
        try:
            return method(*args, **kwargs)
        finally:
            TRACK.leave()

    return wrapper


def _frames(frame: FrameType | None) -> list[tuple[str, str]]:
    """(file name, function name) of the innermost frames, innermost first."""
    found: list[tuple[str, str]] = []
    while frame is not None and len(found) < MAX_FRAMES:
        found.append((frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name))
        frame = frame.f_back
    return found
