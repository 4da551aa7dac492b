"""Processes that run episodes, as their owner sees them: the steps that each is running and those that wait for it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from brorl_graders.base.errors import BroRLError
from brorl_graders.environments.child import LATE, MAX_REPLY
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep
from brorl_graders.processes.channel import Channel
from brorl_graders.processes.fork_server import ForkServer
from brorl_graders.sandbox.clock import Clock

log = logging.getLogger(__name__)

PATIENCE_S = 0.5  # seconds that other episodes wait for a step before they move
GRACE_S = 2.0  # extra seconds where the process enforces the deadline
MAX_STUCK = 16  # extra processes of a kind, one for each that is stuck
MAX_PROCESSES = 128  # processes of all kinds together
SERVE = "brorl_graders.environments.child:serve"
MAX_AT_ONCE = 256  # concurrent steps of an asynchronous process


class Kind(NamedTuple):
    """The properties of an episode's step that decide which processes may run it."""

    environment: str
    is_open: bool
    is_async: bool
    owner: str = ""  # the only task or episode that the process serves; "": any


NO_KIND = Kind("", False, False)  # kind of a turn before its traits are known


@dataclass(eq=False)
class Batch:
    """A batch of environment steps, whose caller waits for all of them together."""

    outcomes: list[EpisodeOutcome | None]
    num_missing: int
    error: BroRLError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def settle(self, index: int, outcome: EpisodeOutcome) -> None:
        """Store the outcome of one environment step of a batch, and wake the waiting caller after the last step."""
        self.outcomes[index] = outcome
        self.num_missing -= 1
        if self.num_missing == 0:
            self.done.set()

    def all_outcomes(self) -> list[EpisodeOutcome]:
        """Return the outcomes of all environment steps in a finished batch, in the order of the steps."""
        outcomes = []
        for outcome in self.outcomes:
            assert outcome is not None, "no step of a batch that is done is missing"
            outcomes.append(outcome)
        return outcomes

    def fail(self, error: BroRLError) -> None:
        """End a batch of environment steps without outcomes, and pass the error to the caller that waits for them."""
        self.error = error
        self.done.set()


@dataclass(eq=False)
class Turn:
    """A request to run one step of an episode: it waits, is sent to a process, and is settled with an outcome."""

    step: EpisodeStep
    batch: Batch
    index: int  # index in the batch
    kind: Kind = NO_KIND
    has_crashed: bool = False  # the process that ran this turn first has crashed
    seconds: float = 0.0  # seconds until the deadline
    started_at: float = 0.0  # time at which it was sent to a process


@dataclass(eq=False)
class EpisodeProcess:
    """A forked process that runs episodes.

    A synchronous process runs its oldest turn, and an asynchronous one all its turns concurrently.
    """

    process: int
    channel: Channel
    kind: Kind
    clock: Clock  # time for the newest turn
    turns: dict[int, Turn] = field(default_factory=dict)  # turns in the process by their number, oldest first
    waiting: deque[Turn] = field(default_factory=deque)  # turns that wait, of episodes in this process
    episodes: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)  # ended episodes that the process does not know of yet
    used_at: float = 0.0

    @property
    def is_free(self) -> bool:
        """True when the process that runs episodes can take one more environment step."""
        return len(self.turns) < (MAX_AT_ONCE if self.kind.is_async else 1)

    @property
    def is_stuck(self) -> bool:
        """True when the episode process has been busy for so long that other episodes should not wait for it."""
        return not self.is_free and time.monotonic() - self._oldest().started_at > PATIENCE_S

    def send_turn(self, number: int, turn: Turn) -> None:
        """Send an environment step to the process that runs the episode. Raises OSError when it cannot be sent."""
        turn.started_at = time.monotonic()
        self.used_at = turn.started_at
        self.clock.start()
        self.turns[number] = turn
        ended, self.ended = self.ended, []
        self.channel.send((number, turn.step, turn.seconds, ended))

    def send_ended(self) -> None:
        """Tell an idle episode process which episodes have ended. Raises OSError when the message cannot be sent."""
        if self.ended and not self.turns:
            ended, self.ended = self.ended, []
            self.channel.send((None, None, 0.0, ended))

    def next_check(self) -> float:
        """Return the time on the monotonic clock at which the deadlines of this process's steps should be checked."""
        if not self.turns:
            return math.inf
        if self.kind.is_async:
            first_end = min(turn.started_at + turn.seconds for turn in self.turns.values())
            return first_end + GRACE_S
        oldest = self._oldest()
        patient_until = oldest.started_at + PATIENCE_S
        if time.monotonic() < patient_until:
            return patient_until
        return oldest.started_at + oldest.seconds

    def is_late(self) -> bool:
        """Return whether an environment step in this process has missed its deadline.

        A process that gets little CPU is late later (`sandbox/clock.py`).
        """
        if self.kind.is_async:
            return time.monotonic() > self.next_check()
        return bool(self.turns) and self.clock.seconds() >= self._oldest().seconds

    def _oldest(self) -> Turn:
        return next(iter(self.turns.values()))


class EpisodeProcesses:
    """The processes of all episodes, and which episode is in which process. Not thread-safe.

    Methods raise ResourceError when the fork server has exited.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        num_processes: int,
        first_message: tuple[int, str],
    ) -> None:
        """Store the limits of the processes that run episodes.

        For each environment and isolation, `num_processes` processes work at once. Each new process gets
        `first_message`.
        """
        self.fork_server = fork_server
        self.num_processes = num_processes
        self.first_message = first_message
        self.all: list[EpisodeProcess] = []
        self.homes: dict[str, EpisodeProcess] = {}
        self._has_logged_gaps = False

    def settle_in(self, episode: str, process: EpisodeProcess) -> bool:
        """Record that an episode runs in `process`, and return whether it ran there already."""
        is_there = episode in process.episodes
        process.episodes.add(episode)
        self.homes[episode] = process
        return is_there

    def move_out(self, episode: str) -> EpisodeProcess | None:
        """Record that no process runs an episode any more, and return the process that ran it, or None."""
        process = self.homes.pop(episode, None)
        if process is not None:
            process.episodes.discard(episode)
            process.ended.append(episode)
        return process

    def find_free(self, kind: Kind) -> EpisodeProcess | None:
        """Return a process that can run a step of an environment of the kind `kind` now, or None.

        The process with the fewest running steps is chosen. A new one is started when none is idle and limits allow it.
        """
        same = []
        num_stuck = 0
        for process in self.all:
            if process.kind == kind:
                same.append(process)
                num_stuck += process.is_stuck
        most = 1 if kind.owner else self.num_processes
        may_start = len(same) < most + min(num_stuck, MAX_STUCK)
        chosen = None
        for process in same:
            is_better = chosen is None or len(process.turns) < len(chosen.turns)
            if process.is_free and is_better:
                chosen = process
        is_idle = chosen is not None and not chosen.turns
        if is_idle or not may_start or not self._has_room():
            return chosen
        return self._start(kind)

    def end(self, process: EpisodeProcess) -> None:
        """Kill an episode process, and record that its episodes are in no process."""
        self.all.remove(process)
        for episode in list(process.episodes):
            self.move_out(episode)
        process.channel.close()
        self.fork_server.end(process.process)

    def close_all(self) -> None:
        """Close the connections to all episode processes, whose fork server has ended or is about to."""
        for process in self.all:
            process.channel.close()
        self.all.clear()
        self.homes.clear()

    def _has_room(self) -> bool:
        """Return whether one more episode process may start, after ending the longest idle one if need be."""
        if len(self.all) < MAX_PROCESSES:
            return True
        oldest = None
        for process in self.all:
            is_idle = not process.turns and not process.waiting
            if is_idle and (oldest is None or process.used_at < oldest.used_at):
                oldest = process
        if oldest is None:
            return False
        self.end(oldest)
        return True

    def _log_gaps(self) -> None:
        """Warn once about what an isolated environment could still do on this machine."""
        if self._has_logged_gaps:
            return
        self._has_logged_gaps = True
        gaps = self.fork_server.gaps()
        if gaps:
            log.warning("an environment could %s", "; ".join(gaps))

    def _start(self, kind: Kind) -> EpisodeProcess:
        channel = Channel(MAX_REPLY)
        is_closed = not kind.is_open
        if is_closed:
            self._log_gaps()
        with channel.theirs:
            number = self.fork_server.fork(channel.theirs.fileno(), is_closed, SERVE)
        process = EpisodeProcess(number, channel, kind, Clock(number))
        channel.send((kind.is_async, *self.first_message))
        self.all.append(process)
        return process


def late_reason(turn: Turn) -> str:
    """Return the reason for the failure of an episode's step that missed its deadline."""
    return f"{LATE} {turn.seconds:g} s"
