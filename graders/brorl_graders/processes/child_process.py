"""Child processes as their owner sees them: their texts, how long they have taken for the first of them, and the inbox
of the one thread that works with them, filled by any other.

A child of a pool serves payloads of one `Isolation`. Those of verifiers that judge by themselves are shared by all
prompts, and rest while another kind is at the front: what they remember is worth keeping. One that runs a library's
scorer serves one prompt and is ended before the next one, so that nothing that a response does to it lasts.
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
CODE_PATIENCE_S = 2.0  # a new child would first start a sandbox of its own, and this verifier ends late programs itself
MAX_STARVED = 4  # deadlines
RUNNING, WAITING_FOR_DISK = "R", "D"  # states in /proc/PID/stat

_libc = ctypes.CDLL(None)
Item = TypeVar("Item")


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

    is_closed: bool = False  # behind walls (`child.py`)
    prompt: str | None = None  # the payload that it serves and no other; None: any


@dataclass(eq=False)
class ScoringTask:
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
        """End the task without scores."""
        self.error = error
        self.done.set()


@dataclass(eq=False)
class ChildProcess:
    """A forked process, and the texts of a task that it has, the one being scored first."""

    process: int
    connection: Connection
    isolation: Isolation
    task: ScoringTask | None = None
    indices: deque[int] = field(default_factory=deque)  # of the task's texts
    started_at: float = 0.0  # when it began with the first of them
    cpu_at_start: float = 0.0  # its CPU time then
    check_at: float = 0.0  # when to see next how long it has taken

    def start_clocks(self) -> None:
        """Start the clocks for the first of its texts."""
        assert self.task is not None, "only a child with a task begins a text"
        self.started_at = time.monotonic()
        self.cpu_at_start = cpu_time(self.process)
        self.check_at = self.started_at + self.task.patience_s

    def seconds_taken(self) -> float:
        """Seconds for the text so far: wall time, or the CPU time it was given when the machine lets it wait for a CPU.

        A child that is starved is not blamed, up to `MAX_STARVED` deadlines of wall time.
        """
        assert self.task is not None, "only a child with a task takes time"
        wall_time = time.monotonic() - self.started_at
        if wall_time > MAX_STARVED * self.task.timeout_s or not wants_to_run(self.process):
            return wall_time
        return min(wall_time, cpu_time(self.process) - self.cpu_at_start)


class Children:
    """Owns the children. Not thread-safe, as the fork server is not. Methods raise ResourceError when that is gone."""

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.front: ChildProcess | None = None
        self.aside: list[ChildProcess] = []
        self.resting: dict[Isolation, ChildProcess] = {}

    def all(self) -> list[ChildProcess]:
        """The one at the front first."""
        front = [] if self.front is None else [self.front]
        return [*front, *self.aside, *self.resting.values()]

    def busy(self) -> list[ChildProcess]:
        """Those that are scoring."""
        return [child for child in self.all() if child.task is not None]

    def bring_to_front(self, isolation: Isolation) -> ChildProcess:
        """Have an idle child at the front that may serve such payloads."""
        if self.front is not None and self.front.isolation != isolation:
            self._retire(self.front)
        if self.front is None:
            self.front = self.resting.pop(isolation, None)
        if self.front is not None and self.front.connection.poll():  # it has nothing to say unasked: it was killed
            self.end(self.front)
        if self.front is None:
            self.front = self._fork(isolation)
        return self.front

    def set_front_aside(self) -> None:
        """Let the child at the front go on with what it has."""
        assert self.front is not None, "only a child can be set aside"
        self.aside.append(self.front)
        self.front = None

    def end(self, child: ChildProcess) -> None:
        """Kill a child that has no texts."""
        if child is self.front:
            self.front = None
        elif child in self.aside:
            self.aside.remove(child)
        else:
            self.resting.pop(child.isolation)
        child.connection.close()
        self.fork_server.end(child.process)

    def end_idle(self) -> None:
        """Kill those that are scoring nothing."""
        for child in self.all():
            if child.task is None:
                self.end(child)

    def close_all(self) -> None:
        """Let all of them go: the fork server takes them along."""
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
    """What has arrived, and a connection that is ready when the thread should look."""

    def __init__(self) -> None:
        self.arrived: deque[Item] = deque()
        self._lock = threading.Lock()
        self._receiver, self._sender = Pipe(duplex=False)

    @property
    def bell(self) -> Connection:
        """Connection to wait for."""
        return self._receiver

    def put(self, item: Item) -> None:
        """Leave something for the thread, and wake it."""
        self.arrived.append(item)
        self.ring()

    def ring(self) -> None:
        """Wake the thread."""
        with self._lock:
            self._sender.send_bytes(b"!")

    def silence(self) -> None:
        """Silence the bell, by the thread, once for each time that it was ready."""
        self._receiver.recv_bytes()
