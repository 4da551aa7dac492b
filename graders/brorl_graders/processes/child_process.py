"""Child processes as their owner sees them: tasks, children, and the inbox of the thread that works with them.

A child of a pool serves payloads of one `Isolation`. Children with verifiers of this package serve all prompts. They
are kept while another kind works, since their caches stay useful. A child that runs a library's scorer serves one
prompt and is killed before the next, so that nothing that a response does to it lasts.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from brorl_graders.base.errors import BroRLError
from brorl_graders.processes.fork_server import ForkServer
from brorl_graders.verifiers.registry import is_foreign, is_open, names_in

PATIENCE_S = 0.25
CODE_PATIENCE_S = 2.0  # longer, since a new child starts a sandbox first and `code` ends late programs
MAX_STARVED = 4  # deadlines of wall time for a child that gets no CPU
RUNNING, WAITING_FOR_DISK = "R", "D"  # states in /proc/PID/stat

_libc = ctypes.CDLL(None)
Item = TypeVar("Item")


def cpu_time(process: int) -> float:
    """Return the CPU seconds of another process, or 0 when it has exited."""
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(process, ctypes.byref(clock)) != 0:
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:  # the process has exited meanwhile
        return 0.0


def wants_to_run(process: int) -> bool:
    """Return whether a process is running, waits for a CPU or waits for a page from disk.

    False means that it sleeps or has exited.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    state = stat.rpartition(")")[2].split()[0]
    return state in (RUNNING, WAITING_FOR_DISK)


class Isolation(NamedTuple):
    """The property of a payload that decides which child process may score it."""

    is_closed: bool = False  # isolated from files, network and processes (`child.py`)
    prompt: str | None = None  # the only payload that it serves; None: any payload


@dataclass(eq=False)
class ScoringTask:
    """Texts to score with one verifier and one payload, and the scores so far."""

    verifier: str
    payload: Mapping[str, Any]
    texts: Sequence[str]
    timeout_s: float  # seconds for each text
    waiting: deque[int] = field(default_factory=deque)  # indices of texts without a child
    scores: dict[int, float | None] = field(default_factory=dict)  # scores by index; None: the verifier failed
    reasons: dict[int, str] = field(default_factory=dict)  # reasons by index: why the verifier failed, or its comment
    error: BroRLError | None = None  # why no text can be scored
    done: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def isolation(self) -> Isolation:
        """The isolation of the child processes that may score the responses of this scoring task."""
        prompt = None
        if is_foreign(self.verifier, self.payload):
            prompt = json.dumps([self.verifier, self.payload], default=str)
        return Isolation(not is_open(self.verifier, self.payload), prompt)

    @property
    def patience_s(self) -> float:
        """Seconds that a child process may take to score a text before other texts move to another child."""
        runs_programs = "code" in names_in(self.verifier, self.payload)
        return min(CODE_PATIENCE_S if runs_programs else PATIENCE_S, self.timeout_s)

    def settle(self, index: int, score: float | None) -> None:
        """Store the score of one text of the task, or None when its verifier failed."""
        self.scores[index] = score
        if len(self.scores) == len(self.texts):
            self.done.set()

    def fail(self, error: BroRLError) -> None:
        """End a scoring task without scores, and pass the error to the caller that waits for them."""
        self.error = error
        self.done.set()


@dataclass(eq=False)
class ChildProcess:
    """A forked child process with the texts that it has, of which it is scoring the first."""

    process: int
    connection: Connection
    isolation: Isolation
    task: ScoringTask | None = None
    indices: deque[int] = field(default_factory=deque)  # indices of its texts in the task
    started_at: float = 0.0  # time at which the first text was started
    cpu_at_start: float = 0.0  # CPU seconds of the child at that time
    check_at: float = 0.0  # time of the next check of the deadline

    def start_clocks(self) -> None:
        """Start the wall-clock and CPU timers for the text that the child process scores now."""
        assert self.task is not None, "only a child with a task begins a text"
        self.started_at = time.monotonic()
        self.cpu_at_start = cpu_time(self.process)
        self.check_at = self.started_at + self.task.patience_s

    def seconds_taken(self) -> float:
        """Return the seconds that the child process has taken for its current text.

        This is wall time, or CPU time while the child waits for a CPU. So a child that gets little CPU is not blamed,
        up to `MAX_STARVED` deadlines of wall time.
        """
        assert self.task is not None, "only a child with a task takes time"
        wall_time = time.monotonic() - self.started_at
        if wall_time > MAX_STARVED * self.task.timeout_s or not wants_to_run(self.process):
            return wall_time
        return min(wall_time, cpu_time(self.process) - self.cpu_at_start)


class Children:
    """Owner of all child processes of a pool. One of them, the front child, gets new texts. Not thread-safe.

    Methods raise ResourceError when the fork server has exited.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.front: ChildProcess | None = None
        self.aside: list[ChildProcess] = []
        self.resting: dict[Isolation, ChildProcess] = {}

    def all(self) -> list[ChildProcess]:
        """Return all child processes of the pool, first the one that gets new texts."""
        front = [] if self.front is None else [self.front]
        return [*front, *self.aside, *self.resting.values()]

    def busy(self) -> list[ChildProcess]:
        """Return the child processes that are scoring a text."""
        return [child for child in self.all() if child.task is not None]

    def bring_to_front(self, isolation: Isolation) -> ChildProcess:
        """Return an idle child process with this isolation, started if need be, and let it get the next texts."""
        if self.front is not None and self.front.isolation != isolation:
            self._retire(self.front)
        if self.front is None:
            self.front = self.resting.pop(isolation, None)
        if self.front is not None and self.front.connection.poll():  # an idle child is readable only when it was killed
            self.end(self.front)
        if self.front is None:
            self.front = self._fork(isolation)
        return self.front

    def set_front_aside(self) -> None:
        """Let the child process that gets new texts finish those that it has, so that another child takes its place."""
        assert self.front is not None, "only a child can be set aside"
        self.aside.append(self.front)
        self.front = None

    def end(self, child: ChildProcess) -> None:
        """Kill a child process that has no texts to score."""
        if child is self.front:
            self.front = None
        elif child in self.aside:
            self.aside.remove(child)
        else:
            self.resting.pop(child.isolation)
        child.connection.close()
        self.fork_server.end(child.process)

    def end_idle(self) -> None:
        """Kill the child processes that are scoring no text."""
        for child in self.all():
            if child.task is None:
                self.end(child)

    def close_all(self) -> None:
        """Close the connections to all child processes, whose fork server has ended or is about to."""
        for child in self.all():
            child.connection.close()
        self.front = None
        self.aside = []
        self.resting = {}

    def _retire(self, child: ChildProcess) -> None:
        if child.isolation.prompt is not None:
            self.end(child)
            return
        self.front = None
        self.resting[child.isolation] = child

    def _fork(self, isolation: Isolation) -> ChildProcess:
        connection, theirs = Pipe()
        with theirs:
            process = self.fork_server.fork(theirs.fileno(), isolation.is_closed)
        return ChildProcess(process, connection, isolation)


class Inbox(Generic[Item]):
    """A queue from many threads to one thread, with a connection that becomes readable when an item arrives."""

    def __init__(self) -> None:
        self.arrived: deque[Item] = deque()
        self._lock = threading.Lock()
        self._receiver, self._sender = Pipe(duplex=False)

    @property
    def bell(self) -> Connection:
        """Connection that becomes readable when this queue's reading thread should wake up, as for a new item."""
        return self._receiver

    def put(self, item: Item) -> None:
        """Put an item into this queue between threads, and wake the thread that takes the items out."""
        self.arrived.append(item)
        self.ring()

    def ring(self) -> None:
        """Wake the thread that takes the items out of this queue between threads."""
        with self._lock:
            self._sender.send_bytes(b"!")

    def silence(self) -> None:
        """Take one wake-up message out of this queue's connection, each time that the connection is readable."""
        self._receiver.recv_bytes()
