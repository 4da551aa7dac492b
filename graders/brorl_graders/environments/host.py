"""Owner of episodes: it runs many of them in few killable processes, and a thread sends out their steps.

Each step has a deadline. An episode stays in the process that started it. It moves when this process has died, or has
been busy with another episode's step for longer than `PATIENCE_S`: then another process repeats its actions. A step
that misses its deadline ends its process and its own episode, and no other episode. A step whose process dies is tried
once more in a process of its own, which shows whether this step was the cause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from brorl_graders.base.errors import BroRLError, ConfigError, ResourceError
from brorl_graders.base.names import check_environment
from brorl_graders.environments.child import read_outcome
from brorl_graders.environments.episode_process import (
    Batch,
    EpisodeProcess,
    EpisodeProcesses,
    Kind,
    Turn,
    late_reason,
)
from brorl_graders.environments.protocol import (
    ALONE,
    ANY,
    EpisodeOutcome,
    EpisodeStep,
    Traits,
    failed_outcome,
)
from brorl_graders.environments.tool_calls import ANY_FORMAT
from brorl_graders.processes.channel import ChildReplyError
from brorl_graders.processes.child_process import Inbox
from brorl_graders.processes.fork_server import ForkServer
from brorl_graders.verifiers.registry import Template, templates

log = logging.getLogger(__name__)

MIN_CHECK_S = 0.02
IDLE_S = 5.0
MAX_LOGGED = 20  # failures that are logged; later ones are only counted
TRAITS = "brorl_graders.environments.registry:find_traits"


Arrival = tuple[list[Turn], list[str]]  # turns to play, and names of ended episodes


@dataclass(frozen=True)
class HostLimits:
    """Limits of episodes and their processes."""

    step_s: float = 10.0  # seconds for one step
    episode_s: float = 300.0  # seconds for all steps of an episode together
    max_characters: int = 8000  # longest observation in characters; the rest is cut off
    num_processes: int = 2  # processes of each kind that work at once
    tool_format: str = ANY_FORMAT


class EpisodeHost:
    """The owner of the processes in which episodes run, and of their fork server. Any thread may call its methods."""

    def __init__(self, limits: HostLimits | None = None) -> None:
        self.limits = limits or HostLimits()
        self.num_failures = 0
        self._fork_server = ForkServer()
        self._traits: dict[tuple[Any, ...], Traits] = {}  # traits by environment and loaded verifiers
        first_message = (self.limits.max_characters, self.limits.tool_format)
        self._processes = EpisodeProcesses(
            self._fork_server,
            self.limits.num_processes,
            first_message,
        )
        self._seconds: dict[str, float] = {}  # seconds of each episode so far
        self._waiting: dict[Kind, deque[Turn]] = {}  # turns without a process
        self._inbox: Inbox[Arrival] = Inbox()
        self._num_sent = 0
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._run,
            name="environment-processes",
            daemon=True,
        )
        self._thread.start()

    def step(self, steps: Sequence[EpisodeStep]) -> list[EpisodeOutcome]:
        """Run one step of each of several episodes, and return the outcomes in order when all steps are done.

        An episode has one step at a time. Raises ConfigError for an unknown environment, and ResourceError when no
        process can be started.
        """
        if not steps:
            return []
        num_steps = len(steps)
        batch = Batch([None] * num_steps, num_steps)
        turns = []
        for index, step in enumerate(steps):
            turn = Turn(step, batch, index)
            turns.append(turn)
        self._post((turns, []))
        # If the thread has ended, the batch is never done
        while not batch.done.wait(IDLE_S):
            if not self._thread.is_alive():
                raise ResourceError("the environments were closed")
        if batch.error is not None:
            raise batch.error
        return batch.all_outcomes()

    def end(self, episodes: Collection[str]) -> None:
        """Close the environments of the episodes with these names. Unknown names are ignored."""
        if not self._is_closed:
            self._post(([], list(episodes)))

    def close(self) -> None:
        """End all episode processes, and fail the environment steps that are running."""
        self._is_closed = True
        self._inbox.ring()
        self._thread.join()

    def process_ids(self) -> list[int]:
        """Return the process ids of the processes that run episodes now."""
        return [process.process for process in self._processes.all]

    def _post(self, what: Arrival) -> None:
        if self._is_closed:
            raise ResourceError("the environments were closed")
        self._inbox.put(what)

    def _run(self) -> None:
        """Run the loop of the thread that owns the episode processes, until the host of environments is closed.

        All methods that follow this one in the class run in this thread.
        """
        while not self._is_closed:
            try:
                self._take_arrivals()
                self._hand_out_turns()
                self._receive()
                self._check_deadlines()
            except (BroRLError, OSError) as error:  # the fork server has exited or does not start
                self._fail_everything(error)
        for process in list(self._processes.all):
            try:
                self._end(process)
            except (BroRLError, OSError):
                break
        self._fail_everything(ResourceError("the environments were closed"))

    def _take_arrivals(self) -> None:
        """Take the environment steps and the names of ended episodes that other threads have put into the inbox."""
        while self._inbox.arrived:
            turns, ended = self._inbox.arrived.popleft()
            self._queue_turns(turns)
            self._forget(ended)

    def _queue_turns(self, turns: Sequence[Turn]) -> None:
        """Queue environment steps for the processes that run their episodes, or for any process with their environment.

        Besides the environment, such a process must have the isolation that the task of the episode needs.
        """
        for turn in turns:
            try:
                turn.kind = self._find_kind(turn.step)
            except ConfigError as error:
                turn.batch.fail(error)
                return
            if self._seconds_left(turn) <= 0:
                reason = f"its steps have taken more than {self.limits.episode_s:g} s"
                self._settle(turn, failed_outcome(reason))
                continue
            home = self._processes.homes.get(turn.step.episode)
            if home is None:
                self._queue_of(turn.kind).append(turn)
            else:
                home.waiting.append(turn)

    def _queue_of(self, kind: Kind) -> deque[Turn]:
        return self._waiting.setdefault(kind, deque())

    def _find_kind(self, step: EpisodeStep) -> Kind:
        name = step.environment
        check_environment(name, step.settings)
        needs = (name, *_templates(step))
        if needs not in self._traits:
            name_and_task = (name, dict(step.task))
            answer = self._fork_server.call_function(TRAITS, name_and_task)
            self._traits[needs] = Traits(*answer)
        traits = self._traits[needs]
        owner = ""
        if traits.isolation == ALONE:
            owner = step.episode
        elif traits.isolation != ANY:
            owner = f"{name} {step.settings} {step.task}"
        return Kind(
            name,
            traits.is_open,
            traits.is_async,
            owner,
        )

    def _seconds_left(self, turn: Turn) -> float:
        return self.limits.episode_s - self._seconds.get(turn.step.episode, 0.0)

    def _hand_out_turns(self) -> None:
        """Send waiting environment steps to free processes.

        First come the steps of episodes that a process runs already, then those that any process with the environment
        may take.
        """
        for process in list(self._processes.all):
            # Repeating an episode's actions elsewhere is cheaper than waiting for another episode's step
            if process.waiting and process.is_stuck:
                waiting = process.waiting
                process.waiting = deque()
                self._requeue(waiting)
            while process.waiting and process.is_free:
                turn = process.waiting.popleft()
                self._send_turn(process, turn)
        for kind, waiting in list(self._waiting.items()):
            while waiting:
                chosen = self._processes.find_free(kind)
                if chosen is None:
                    break
                turn = waiting.popleft()
                self._send_turn(chosen, turn)
            if not waiting:
                del self._waiting[kind]

    def _requeue(self, turns: Iterable[Turn]) -> None:
        """Queue these environment steps for any process with their environment, which then takes over the episodes."""
        for turn in turns:
            self._processes.move_out(turn.step.episode)
            self._queue_of(turn.kind).append(turn)

    def _send_turn(self, process: EpisodeProcess, turn: Turn) -> None:
        episode = turn.step.episode
        is_there = self._processes.settle_in(episode, process)
        num_actions = 1 if is_there else len(turn.step.actions)  # a new process repeats the earlier actions
        turn.seconds = min(self.limits.step_s * num_actions, self._seconds_left(turn))
        # The number tells the answer to this turn from a late answer to an earlier one
        self._num_sent += 1
        try:
            process.send_turn(self._num_sent, turn)
        except OSError:
            self._lose(process, "its process is gone")

    def _receive(self) -> None:
        """Wait for a request, an outcome of a step, the end of an episode process, or the next check of deadlines."""
        now = time.monotonic()
        next_check = now + IDLE_S
        channels = []
        for process in self._processes.all:
            channels.append(process.channel.fileno())
            next_check = min(next_check, process.next_check())
        timeout = max(next_check - now, MIN_CHECK_S)
        if self._inbox.arrived:
            timeout = 0.0
        ready = wait([self._inbox.bell, *channels], timeout)
        if self._inbox.bell in ready:
            self._inbox.silence()
        for process in list(self._processes.all):
            if process.channel.fileno() in ready:
                self._receive_from(process)

    def _receive_from(self, process: EpisodeProcess) -> None:
        try:
            raw = process.channel.receive()
            if raw is None:
                return
            number, outcome = read_outcome(raw)
            turn = process.turns.pop(number)
        except (EOFError, OSError):
            self._lose(process, "its process ended")
            return
        except (ChildReplyError, KeyError) as error:
            self._lose(process, str(error))
            return
        episode = turn.step.episode
        before = self._seconds.get(episode, 0.0)
        seconds = time.monotonic() - turn.started_at
        self._seconds[episode] = before + seconds
        if outcome.has_ended:
            self._forget([episode])
        self._settle(turn, outcome)

    def _check_deadlines(self) -> None:
        """End each episode process in which an environment step has missed its deadline."""
        for process in list(self._processes.all):
            if process.is_late():
                self._end_late(process)

    def _end_late(self, process: EpisodeProcess) -> None:
        """End an episode process in which an environment step has missed its deadline, and fail this step.

        Of several concurrent steps any may block the event loop, so each is tried again alone.
        """
        # One step that blocks the event loop makes all of them late
        if process.kind.is_async and len(process.turns) > 1:
            self._lose(process, "its process does not answer")
            return
        turns = list(process.turns.values())
        process.turns.clear()
        self._lose(process, "")
        for turn in turns:
            self._forget([turn.step.episode])
            self._settle(turn, failed_outcome(late_reason(turn)))

    def _lose(self, process: EpisodeProcess, reason: str) -> None:
        """End an episode process that failed.

        The environment steps that it was running are tried once more, each in a process of its own. The steps that
        waited for it move to other processes.
        """
        turns = list(process.turns.values())
        process.turns.clear()
        self._end(process)
        for turn in turns:
            episode = turn.step.episode
            if turn.has_crashed:
                self._settle(turn, failed_outcome(reason))
                continue
            turn.has_crashed = True
            # In a process of its own, a second crash is the turn's own fault
            turn.kind = turn.kind._replace(owner=episode)
            self._queue_of(turn.kind).append(turn)

    def _end(self, process: EpisodeProcess) -> None:
        """Kill an episode process, and queue the environment steps that wait for it for other processes."""
        waiting = process.waiting
        process.waiting = deque()
        self._processes.end(process)
        self._requeue(waiting)

    def _forget(self, episodes: Iterable[str]) -> None:
        touched = set()
        for episode in episodes:
            self._seconds.pop(episode, None)
            process = self._processes.move_out(episode)
            if process is not None:
                touched.add(process)
        for process in touched:
            # A process for one episode has nothing left to do, and it holds memory
            is_of_use = not process.kind.owner
            if process.episodes or process.waiting or process.kind in self._waiting:
                is_of_use = True
            try:
                process.send_ended()
            except OSError:
                is_of_use = False
            if not is_of_use:
                self._end(process)

    def _settle(self, turn: Turn, outcome: EpisodeOutcome) -> None:
        if outcome.error:
            self.num_failures += 1
            if self.num_failures <= MAX_LOGGED:
                log.warning(
                    "environment %s: %s; the episode ends",
                    turn.step.environment,
                    outcome.error,
                )
        if outcome.has_ended:
            self._seconds.pop(turn.step.episode, None)
        turn.batch.settle(turn.index, outcome)

    def _fail_everything(self, error: BroRLError | OSError) -> None:
        """Fail all environment steps and stop the fork server of their processes, which the next step starts again."""
        if isinstance(error, OSError):
            error = ResourceError(f"the environments are gone: {error}")
        turns: list[Turn] = []
        for process in self._processes.all:
            turns += process.turns.values()
            turns += process.waiting
        for waiting in self._waiting.values():
            turns += waiting
        while self._inbox.arrived:
            arrived, _ = self._inbox.arrived.popleft()
            turns += arrived
        for turn in turns:
            turn.batch.fail(error)
        self._processes.close_all()
        self._seconds.clear()
        self._waiting.clear()
        self._traits.clear()
        self._fork_server.close()


def _templates(step: EpisodeStep) -> list[Template]:
    """Return the verifiers, with settings, that must be loaded to score an episode's task.

    There are none for a task without verifier.
    """
    if "verifier" not in step.task:
        return []
    return templates(step.task["verifier"], step.task.get("payload", {}))
