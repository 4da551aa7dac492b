"""Processes of episodes as their owner sees them: the steps that each has been given, and those that wait for it."""

from __future__ import annotations

import logging
import math
import os
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import NamedTuple

from brorl_graders.base.errors import BroRLError
from brorl_graders.environments.child import LATE
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep
from brorl_graders.processes.child_process import MAX_STARVED, cpu_time, wants_to_run
from brorl_graders.processes.fork_server import ForkServer

log = logging.getLogger(__name__)

PATIENCE_S = 0.5  # after which others do not wait for a step any more
GRACE_S = 2.0  # beyond a deadline that a process keeps by itself
TRANSFER_S = 5.0  # for a message that has begun
MAX_STUCK = 16  # processes of a kind beyond those at work, while that many are stuck
MAX_PROCESSES = 128  # those of one task or episode included
SERVE = "brorl_graders.environments.child:serve"
MAX_AT_ONCE = 256  # steps of an asynchronous process


class Kind(NamedTuple):
    """Which processes may take a step."""

    environment: str
    is_open: bool
    is_async: bool
    owner: str = ""  # the only task or episode that such a process serves; "": any


NO_KIND = Kind("", False, False)  # not found out yet


@dataclass(eq=False)
class Batch:
    """Steps that somebody waits for together."""

    outcomes: list[EpisodeOutcome | None]
    num_missing: int
    error: BroRLError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def settle(self, index: int, outcome: EpisodeOutcome) -> None:
        """Note the outcome of a step."""
        self.outcomes[index] = outcome
        self.num_missing -= 1
        if self.num_missing == 0:
            self.done.set()

    def all_outcomes(self) -> list[EpisodeOutcome]:
        """Its outcomes, in order, once it is done."""
        outcomes = []
        for outcome in self.outcomes:
            assert outcome is not None, "no step of a batch that is done is missing"
            outcomes.append(outcome)
        return outcomes

    def fail(self, error: BroRLError) -> None:
        """End it without outcomes."""
        self.error = error
        self.done.set()


@dataclass(eq=False)
class Turn:
    """A step under way: waiting → with a process → settled."""

    step: EpisodeStep
    batch: Batch
    index: int  # in the batch
    kind: Kind = NO_KIND
    has_crashed: bool = False  # with the process that had it first
    seconds: float = 0.0  # its deadline
    started_at: float = 0.0  # when a process was given it


@dataclass(eq=False)
class EpisodeProcess:
    """A forked process; its first turn is the one at work if it takes them one after the other."""

    process: int
    connection: Connection
    kind: Kind
    turns: dict[int, Turn] = field(default_factory=dict)  # by number, oldest first
    waiting: deque[Turn] = field(default_factory=deque)  # of episodes that live here
    episodes: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)  # episodes that it has not been told to forget
    cpu_at_start: float = 0.0  # its CPU time when it was given a turn
    used_at: float = 0.0

    def limit_transfers(self) -> None:
        """No message that is begun and not finished, on either side, may hold the owner up."""
        end = socket.socket(fileno=os.dup(self.connection.fileno()))
        with end:
            limit = struct.pack("ll", int(TRANSFER_S), 0)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    @property
    def is_free(self) -> bool:
        """Whether it takes one more turn."""
        return len(self.turns) < (MAX_AT_ONCE if self.kind.is_async else 1)

    @property
    def is_stuck(self) -> bool:
        """Whether others had better not wait for it."""
        return not self.is_free and time.monotonic() - self._oldest().started_at > PATIENCE_S

    def send_turn(self, number: int, turn: Turn) -> None:
        """Hand it a turn. Raises OSError when it does not take it."""
        turn.started_at = time.monotonic()
        self.used_at = turn.started_at
        self.cpu_at_start = cpu_time(self.process)
        self.turns[number] = turn
        ended, self.ended = self.ended, []
        self.connection.send((number, turn.step, turn.seconds, ended))

    def send_ended(self) -> None:
        """Have an idle process forget episodes. Raises OSError."""
        if self.ended and not self.turns:
            ended, self.ended = self.ended, []
            self.connection.send((None, None, 0.0, ended))

    def next_check(self) -> float:
        """When to see how long it has taken."""
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
        """Whether a turn has taken too long. One that is starved of a CPU is not blamed, up to `MAX_STARVED`
        deadlines."""
        now = time.monotonic()
        if self.kind.is_async:
            return now > self.next_check()
        if not self.turns:
            return False
        oldest = self._oldest()
        taken = now - oldest.started_at
        if taken <= MAX_STARVED * oldest.seconds and wants_to_run(self.process):
            taken = min(taken, cpu_time(self.process) - self.cpu_at_start)
        return taken >= oldest.seconds

    def _oldest(self) -> Turn:
        return next(iter(self.turns.values()))


class EpisodeProcesses:
    """Owns the processes, and knows which episode lives in which. Not thread-safe. Methods raise ResourceError when the
    fork server is gone."""

    def __init__(
        self,
        fork_server: ForkServer,
        num_processes: int,
        first_message: tuple[int, str],
    ) -> None:
        """`num_processes` of a kind are at work at once; a new one is told `first_words`."""
        self.fork_server = fork_server
        self.num_processes = num_processes
        self.first_message = first_message
        self.all: list[EpisodeProcess] = []
        self.homes: dict[str, EpisodeProcess] = {}
        self._has_logged_gaps = False

    def settle_in(self, episode: str, process: EpisodeProcess) -> bool:
        """Have an episode live in a process; whether it lived there before."""
        is_there = episode in process.episodes
        process.episodes.add(episode)
        self.homes[episode] = process
        return is_there

    def move_out(self, episode: str) -> EpisodeProcess | None:
        """Have an episode live nowhere; where it lived."""
        process = self.homes.pop(episode, None)
        if process is not None:
            process.episodes.discard(episode)
            process.ended.append(episode)
        return process

    def find_free(self, kind: Kind) -> EpisodeProcess | None:
        """One that takes a turn of this kind now, with the fewest at work; a new one where there may be one more."""
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
        """Kill a process; nothing lives there any more."""
        self.all.remove(process)
        for episode in list(process.episodes):
            self.move_out(episode)
        process.connection.close()
        self.fork_server.end(process.process)

    def close_all(self) -> None:
        """Let all of them go: the fork server takes them along."""
        for process in self.all:
            process.connection.close()
        self.all.clear()
        self.homes.clear()

    def _has_room(self) -> bool:
        """Whether one more process may start: the one that has been idle for longest makes room for it."""
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
        """What the walls of this machine leave open, once."""
        if self._has_logged_gaps:
            return
        self._has_logged_gaps = True
        gaps = self.fork_server.gaps()
        if gaps:
            log.warning("an environment could %s", "; ".join(gaps))

    def _start(self, kind: Kind) -> EpisodeProcess:
        connection, theirs = Pipe()
        is_closed = not kind.is_open
        if is_closed:
            self._log_gaps()
        with theirs:
            number = self.fork_server.fork(theirs.fileno(), is_closed, SERVE)
        process = EpisodeProcess(number, connection, kind)
        process.limit_transfers()
        connection.send((kind.is_async, *self.first_message))
        self.all.append(process)
        return process


def late_reason(turn: Turn) -> str:
    """Reason of an episode whose step took too long."""
    return f"{LATE} {turn.seconds:g} s"
