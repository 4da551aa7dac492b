"""Child processes as their owner sees them: tasks, children, and the inbox of the thread that works with them.

A child of a pool serves payloads of one `Isolation`. Children with verifiers of this package serve all prompts. They
are kept while another kind works, since their caches stay useful. A child that runs a library's scorer serves one
prompt and is killed before the next, so that nothing that a response does to it lasts.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, NamedTuple, TypeVar

from brorl_graders.base.errors import BroRLError
from brorl_graders.processes.channel import Channel
from brorl_graders.processes.child import MAX_REPLY
from brorl_graders.processes.fork_server import ForkServer
from brorl_graders.sandbox.clock import Clock
from brorl_graders.verifiers.registry import Template, is_foreign, is_open, names_in, runs_own_code, templates

# Seconds for a text before other texts move to another child. Longer for programs, since a new child starts a sandbox
# first and `code` ends late programs.
PATIENCE_S, LEAST_PATIENCE_S = 0.25, 0.02
CODE_PATIENCE_S, LEAST_CODE_PATIENCE_S = 2.0, 0.25
BATCH = 32  # texts that a child gets at once
MAX_ASIDE = 16  # children that may be set aside
MANY_LATE = MAX_ASIDE // 2  # texts of a task that miss the deadline before the others fail without a try

Item = TypeVar("Item")
Question = tuple[str, bytes]  # verifier and packed payload


class Isolation(NamedTuple):
    """The property of a payload that decides which child process may score it."""

    is_closed: bool = False  # isolated from files, network and processes (`child.py`)
    prompt: str | None = None  # the only payload that it serves; None: any payload

    @property
    def batch(self) -> int:
        """Number of texts that such a child process may have at once.

        A response that takes its process over can forge the replies to all texts that the process has. So code that is
        not of this package gets one text at a time.
        """
        return BATCH if self == Isolation(is_closed=True) else 1


@dataclass(eq=False)
class ScoringTask:
    """Texts to score with one verifier and one payload, and the scores so far."""

    verifier: str
    payload: Mapping[str, Any]
    texts: Sequence[str]
    timeout_s: float  # seconds for each text
    waiting: deque[int] = field(default_factory=deque)  # indices of texts without a child
    suspected: set[int] = field(default_factory=set)  # indices of texts whose child sent what it must not
    num_set_aside: int = 0  # texts that have outlasted the patience
    num_late: int = 0  # texts that have missed the deadline
    scores: dict[int, float | None] = field(default_factory=dict)  # scores by index; None: the verifier failed
    reasons: dict[int, str] = field(default_factory=dict)  # reasons by index: why the verifier failed, or its comment
    of_response: set[int] = field(default_factory=set)  # indices of failures that the response caused
    error: BroRLError | None = None  # why no text can be scored
    done: threading.Event = field(default_factory=threading.Event)
    is_trial: bool = False  # a text of ours finds out whether the payload's reference is to blame

    def trial(self, text: str) -> ScoringTask:
        """Build a task that scores a text by the same payload."""
        made = ScoringTask(self.verifier, self.payload, [text], self.timeout_s, deque([0]), is_trial=True)
        made.packed = self.packed
        return made

    @property
    def question(self) -> Question:
        """Verifier and payload."""
        return self.verifier, self.packed

    @property
    def is_hopeless(self) -> bool:
        """Whether `MANY_LATE` texts or more missed their deadline and none has a score."""
        return self.num_late >= MANY_LATE and all(score is None for score in self.scores.values())

    def prepare(self) -> None:
        """Read the payload in the thread of the caller, whose values may raise anything."""
        assert self.packed is not None
        assert self.isolation is not None
        assert self.templates is not None
        assert self.patiences is not None
        assert self.runs_own_code is not None

    @cached_property
    def packed(self) -> bytes:
        """The payload as a child process receives it."""
        return pickle.dumps(dict(self.payload), pickle.HIGHEST_PROTOCOL)

    @cached_property
    def isolation(self) -> Isolation:
        """The isolation of the child processes that may score the responses of this scoring task."""
        prompt = None
        if is_foreign(self.verifier, self.payload):
            prompt = json.dumps([self.verifier, self.payload], default=str)
        return Isolation(not is_open(self.verifier, self.payload), prompt)

    @cached_property
    def templates(self) -> list[Template]:
        """The verifiers and environments that a process loads before it scores the responses of this task."""
        return templates(self.verifier, self.payload)

    @cached_property
    def runs_own_code(self) -> bool:
        """Whether a function of the user's own scores, which is to blame for what happens in it."""
        return runs_own_code(self.verifier, self.payload)

    @cached_property
    def patiences(self) -> tuple[float, float]:
        """The longest and the shortest `patience_s` of this scoring task."""
        if "code" in names_in(self.verifier, self.payload):
            return CODE_PATIENCE_S, LEAST_CODE_PATIENCE_S
        return PATIENCE_S, LEAST_PATIENCE_S

    @property
    def patience_s(self) -> float:
        """Seconds that a child process may take to score a text before other texts move to another child.

        They halve with each text that takes longer, so that a prompt with many hanging responses holds up others less.
        """
        longest, shortest = self.patiences
        return min(max(longest * 0.5**self.num_set_aside, shortest), self.timeout_s)

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
    channel: Channel
    isolation: Isolation
    clock: Clock  # time for its first text
    task: ScoringTask | None = None
    question: Question | None = None  # question of the last text that it scored, whose payload it has read
    indices: deque[int] = field(default_factory=deque)  # indices of its texts in the task
    number: int = 0  # number of the reply to its first text
    is_aside: bool = False  # set aside: its first text has outlasted the patience
    has_lost_texts: bool = False  # other texts were taken back, which its process scores all the same
    check_at: float = 0.0  # time of the next check of the deadline

    def start_clock(self) -> None:
        """Start the clock for the text that the child process scores now."""
        assert self.task is not None, "only a child with a task begins a text"
        self.clock.start()
        # An early look at the child is what later looks are compared with
        self.check_at = self.clock.started_at + min(self.task.patience_s, self.task.timeout_s / 4)


class Children:
    """Owner of all child processes of a pool. Not thread-safe.

    Methods raise ResourceError when the fork server has exited.
    """

    def __init__(self, fork_server: ForkServer, num_at_once: int) -> None:
        """Store that `num_at_once` child processes may score texts, besides those that are set aside."""
        self.fork_server = fork_server
        self.num_at_once = num_at_once
        self.all: list[ChildProcess] = []  # the one that was used last is last

    def busy(self) -> list[ChildProcess]:
        """Return the child processes that are scoring a text."""
        return [child for child in self.all if child.task is not None]

    def idle(self) -> list[ChildProcess]:
        """Return the child processes that are scoring no text."""
        return [child for child in self.all if child.task is None]

    @property
    def num_aside(self) -> int:
        """Number of child processes that are set aside."""
        return sum(child.is_aside for child in self.all)

    def can_take_texts(self) -> bool:
        """Return whether one more child process may get texts."""
        return len(self.busy()) - self.num_aside < self.num_at_once

    def take(self, isolation: Isolation) -> ChildProcess:
        """Return an idle child process with this isolation, started if need be.

        Idle children that serve another prompt alone are killed.
        """
        for child in reversed(self.idle()):
            is_same = child.isolation == isolation
            # An idle child is readable only when it was killed or sent what it must not
            if is_same and not wait([child.channel.fileno()], 0):
                self.all.remove(child)
                self.all.append(child)
                return child
            if is_same or child.isolation.prompt is not None:
                self.end(child)
        child = self._fork(isolation)
        self.all.append(child)
        return child

    def release(self, child: ChildProcess) -> None:
        """Take the task from a child process that has scored its texts.

        The child is killed when its process goes on with texts that were taken back, or when enough like it are idle.
        """
        child.task = None
        child.is_aside = False
        same = [other for other in self.idle() if other.isolation == child.isolation]
        if child.has_lost_texts or len(same) > self.num_at_once:
            self.end(child)

    def end(self, child: ChildProcess) -> None:
        """Kill a child process."""
        self.all.remove(child)
        child.channel.close()
        self.fork_server.end(child.process)

    def end_idle(self) -> None:
        """Kill the child processes that are scoring no text."""
        for child in self.idle():
            self.end(child)

    def close_all(self) -> None:
        """Close the connections to all child processes, whose fork server has ended or is about to."""
        for child in self.all:
            child.channel.close()
        self.all.clear()

    def _fork(self, isolation: Isolation) -> ChildProcess:
        channel = Channel(MAX_REPLY)
        with channel.theirs:
            process = self.fork_server.fork(channel.theirs.fileno(), isolation.is_closed)
        return ChildProcess(process, channel, isolation, Clock(process))


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
