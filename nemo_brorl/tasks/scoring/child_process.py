"""A child process as its owner sees it: its texts, and how long it has taken for the first of them."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from nemo_brorl.core.errors import BroRLError
from nemo_brorl.tasks.verifiers.registry import is_foreign, is_open, names_in

PATIENCE_S = 0.25
CODE_PATIENCE_S = 2.0  # a new child would first start a sandbox of its own, and this verifier ends late programs itself
MAX_STARVED = 4  # deadlines
RUNNING, WAITING_FOR_DISK = "R", "D"  # states in /proc/PID/stat

_libc = ctypes.CDLL(None)


def cpu_time(process: int) -> float:
    """CPU seconds of another process; 0 when it is gone."""
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(process, ctypes.byref(clock)) != 0:
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:  # it ended meanwhile
        return 0.0


def wants_to_run(process: int) -> bool:
    """Whether a process is running, waiting for a CPU, or for a page from disk, and not asleep or gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    state = stat.rpartition(")")[2].split()[0]
    return state in (RUNNING, WAITING_FOR_DISK)


class Isolation(NamedTuple):
    """Which child may serve a payload."""

    is_closed: bool = False  # behind walls (`walls.py`)
    prompt: str | None = None  # the payload that it serves and no other; None: any


@dataclass(eq=False)
class Job:
    """Texts to score for one payload."""

    verifier: str
    payload: Mapping[str, Any]
    texts: Sequence[str]
    timeout_s: float  # for each text
    waiting: deque[int] = field(default_factory=deque)  # indices of texts that no child has
    scores: dict[int, float | None] = field(default_factory=dict)  # by index; None: failed
    reasons: dict[int, str] = field(default_factory=dict)  # by index: why it failed, or what the verifier says
    error: BroRLError | None = None  # why no text of it can be scored
    done: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def isolation(self) -> Isolation:
        """Which child may serve it."""
        prompt = None
        if is_foreign(self.verifier, self.payload):
            prompt = json.dumps([self.verifier, self.payload], default=str)
        return Isolation(not is_open(self.verifier, self.payload), prompt)

    @property
    def patience_s(self) -> float:
        """How long a child may take for a text before it is set aside."""
        runs_programs = "code" in names_in(self.verifier, self.payload)
        return min(CODE_PATIENCE_S if runs_programs else PATIENCE_S, self.timeout_s)

    def settle(self, index: int, score: float | None) -> None:
        """Note the score of a text, None when its verifier failed."""
        self.scores[index] = score
        if len(self.scores) == len(self.texts):
            self.done.set()

    def fail(self, error: BroRLError) -> None:
        """End the job without scores."""
        self.error = error
        self.done.set()


@dataclass(eq=False)
class ChildProcess:
    """A forked process, and the texts of a job that it has, the one being scored first."""

    process: int
    connection: Connection
    isolation: Isolation
    job: Job | None = None
    indices: deque[int] = field(default_factory=deque)  # of the job's texts
    since: float = 0.0  # when it began with the first of them
    cpu_since: float = 0.0  # its CPU time then
    look_at: float = 0.0  # when to see next how long it has taken

    def begin_text(self) -> None:
        """Start the clocks for the first of its texts."""
        assert self.job is not None, "only a child with a job begins a text"
        self.since = time.monotonic()
        self.cpu_since = cpu_time(self.process)
        self.look_at = self.since + self.job.patience_s

    def time_taken(self) -> float:
        """Seconds for the text so far: wall time, or the CPU time it was given when the machine lets it wait for a CPU.

        A child that is starved is not blamed, up to `MAX_STARVED` deadlines of wall time.
        """
        assert self.job is not None, "only a child with a job takes time"
        wall_time = time.monotonic() - self.since
        if wall_time > MAX_STARVED * self.job.timeout_s or not wants_to_run(self.process):
            return wall_time
        return min(wall_time, cpu_time(self.process) - self.cpu_since)
