"""Pool of child processes that score texts under a hard deadline, and the thread that gives them work.

As many children as this process has cores get the texts of waiting tasks in order, a batch at a time. A text waits, is
being scored, and then is scored or has failed (deadline, crash, exception). When a child takes longer for a text than
the task's patience while other texts wait, it is set *aside*. It may finish this text until the deadline, and another
child, forked in milliseconds, takes the other texts. So a verifier that hangs costs its own text and not the time of
others. At most `MAX_ASIDE` children are aside.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from brorl_graders.base.errors import BroRLError, ResourceError
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.verdicts import LATE, Verdicts
from brorl_graders.processes.channel import ChildReplyError
from brorl_graders.processes.child import ChildReply, read_reply
from brorl_graders.processes.child_process import MAX_ASIDE, ChildProcess, Children, Inbox, ScoringTask
from brorl_graders.processes.fork_server import ForkServer
from brorl_graders.processes.time_outs import TimeOuts

log = logging.getLogger(__name__)

MIN_CHECK_S = 0.02  # shortest time between two checks of a child
TOO_MANY = "its process sent a reply too many"
MAX_LOGGED = 20  # failures of one reason each that are logged; others are only counted
SLOWER = 2.0  # times that a process may read a question more slowly than the one that had the trial
TRIAL_S = 1.0  # time of a text after which its question has a trial
IDLE_S = 5.0  # longest wait of either thread when nothing happens


class ProcessPool:
    """Owner of a fork server and its children, which score texts. Many threads may call `score` at once."""

    def __init__(self, deadlines: Deadlines, num_at_once: int | None = None) -> None:
        """Start the thread that owns the child processes.

        `num_at_once` child processes score at once, besides those that take too long. None: one for each core.
        """
        self.deadlines = deadlines
        self.num_failures = 0
        self._logged: set[tuple[str, str]] = set()  # verifiers with reasons of failures
        self._late_s = 0.0  # seconds of children whose text was ended at its deadline, not taken yet
        self._fork_server = ForkServer()
        self._tasks: deque[ScoringTask] = deque()  # tasks with waiting texts, oldest first
        self._children = Children(self._fork_server, num_at_once or len(os.sched_getaffinity(0)))
        self._time_outs = TimeOuts()
        self._has_logged_gaps = False
        self._inbox: Inbox[ScoringTask] = Inbox()
        self._is_closed = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="verifier-processes", daemon=True)
        self._thread.start()

    def score(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> list[float | None]:
        """Score texts with a verifier, and return one score for each text, None where the verifier failed.

        Raises ConfigError when the verifier cannot be loaded, and ResourceError when no process can be started.
        """
        return self.judge(verifier, payload, texts).scores

    def judge(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> Verdicts:
        """Score texts with a verifier, and return scores with the reasons for them or for failures.

        Raises ConfigError when the verifier cannot be loaded, and ResourceError when no process can be started.
        """
        # Values of a caller may raise anything, and must not do so in the thread that all callers share. A subclass of
        # str would be imported in the child.
        texts = [str.__str__(text) if isinstance(text, str) else text for text in texts]
        try:
            task = ScoringTask(verifier, dict(payload), texts, self.deadlines.seconds(verifier, payload))
            task.prepare()
        except BroRLError:
            raise
        except Exception as error:  # noqa: BLE001
            reason = f"the payload cannot be sent to a process: {type(error).__name__}: {error}"
            return Verdicts([None] * len(texts), dict.fromkeys(range(len(texts)), reason))
        for index, text in enumerate(texts):
            if isinstance(text, str):
                task.waiting.append(index)
            else:
                task.reasons[index] = f"the response is of type {type(text).__name__}: give a text"
                task.settle(index, None)
        if task.waiting or not texts:
            self._wait_for(task)
        scores = [task.scores[index] for index in range(len(texts))]
        return Verdicts(scores, task.reasons, task.of_response)

    def load(self, verifier: str) -> None:
        """Import a verifier and its libraries before the first text needs them.

        Raises ConfigError when the verifier cannot be loaded, and ResourceError when no process can be started.
        """
        self._wait_for(ScoringTask(verifier, {}, (), self.deadlines.default_s))

    def take_late_s(self) -> float:
        """Return the seconds since the last call of this method that child processes lost to texts without a score.

        Those are texts whose verifier was ended at its deadline.
        """
        seconds, self._late_s = self._late_s, 0.0
        return seconds

    def close(self) -> None:
        """Kill all child processes of the pool, and fail the scoring tasks that are running."""
        self._is_closed = True
        self._inbox.ring()
        self._thread.join()

    def child_pids(self) -> list[int]:
        """Return the process ids of the child processes that score texts."""
        return [child.process for child in list(self._children.all)]

    def _wait_for(self, task: ScoringTask) -> None:
        """Hand a scoring task to the thread that owns the verifier processes, and wait until it is done.

        Raises the error of a failed task.
        """
        if os.getpid() != self._owner:
            raise ResourceError(
                f"the verifier pool is of process {self._owner}, from which this process was forked: make a pool here"
            )
        if self._is_closed:
            raise ResourceError("the verifier pool was closed")
        self._inbox.put(task)
        while not task.done.wait(IDLE_S):
            if not self._thread.is_alive():
                raise ResourceError("the verifier pool was closed")
        if task.error is not None:
            raise task.error

    def _run(self) -> None:
        """Run the loop of the thread that owns the child processes, until the pool of verifier processes is closed.

        All methods that follow this one in the class run in this thread.
        """
        while not self._is_closed:
            try:
                self._hand_out_texts()
                self._receive_scores()
                self._check_deadlines()
            except BroRLError as error:  # the fork server has exited or does not start
                self._fail_everything(error)
            except OSError as error:
                self._fail_everything(ResourceError(f"the verifier processes are gone: {error}"))
            except Exception as error:
                log.exception("the thread of the verifier processes failed, and goes on")
                self._fail_everything(ResourceError(f"the verifier processes failed: {type(error).__name__}: {error}"))
        self._fail_everything(ResourceError("the verifier pool was closed"))

    def _hand_out_texts(self) -> None:
        """Send the texts of waiting scoring tasks, a batch at a time, to child processes that may take more."""
        while self._inbox.arrived:
            self._tasks.append(self._inbox.arrived.popleft())
        while (task := self._next_task()) is not None:
            self._load_verifiers(task)
            batch: list[int] = []
            while task.waiting and len(batch) < task.isolation.batch:
                index = task.waiting.popleft()
                known = self._time_outs.reason(task, index)
                if known is None:
                    batch.append(index)
                else:
                    self._record_failure(task, index, *known)
            if not task.waiting:
                self._tasks.remove(task)
            if batch:
                self._send(task, batch)
            elif not task.texts:
                task.done.set()  # the task had only verifiers to load

    def _next_task(self) -> ScoringTask | None:
        """Return the oldest scoring task whose texts can be sent now, or None.

        A prompt that needs children of its own has one at a time, since each child would be new. Such a prompt goes
        first while its child is idle, which other prompts would kill.
        """
        if not self._tasks or not self._children.can_take_texts():
            return None
        own = [child for child in self._children.all if child.isolation.prompt is not None and not child.is_aside]
        busy = {child.isolation for child in own if child.task is not None}
        idle = {child.isolation for child in own if child.task is None}
        ready = [task for task in self._tasks if task.isolation not in busy and not self._time_outs.is_on_trial(task)]
        first = ready[0] if ready else None
        return next((task for task in ready if task.isolation in idle), first)

    def _load_verifiers(self, task: ScoringTask) -> None:
        """Have the fork server load the verifiers of a scoring task, which fails when one cannot be loaded.

        Idle children are killed when a library is new, since they were forked without it.
        """
        for template in task.templates:
            if template in self._fork_server.loaded:
                continue
            is_new = not self._fork_server.has_library_of(template.verifier)
            error = self._fork_server.load(template)
            if is_new:
                self._children.end_idle()
            if error is not None:
                task.waiting.clear()
                task.fail(error)
        if task.isolation.is_closed and not self._has_logged_gaps:
            self._has_logged_gaps = True
            gaps = self._fork_server.gaps()
            if gaps:
                log.warning("a response that took a library's scorer over could %s", "; ".join(gaps))

    def _send(self, task: ScoringTask, batch: list[int]) -> None:
        child = self._children.take(task.isolation)
        child.task = task
        child.indices = deque(batch)
        child.number = secrets.randbits(60)
        child.start_clock()
        texts = [task.texts[index] for index in batch]
        try:
            child.channel.send((task.verifier, task.packed, texts, child.number))
        except OSError:
            self._end_child(child, "its process is gone")

    def _receive_scores(self) -> None:
        """Wait for a scoring task, a score, the end of a child process, or the next check of deadlines."""
        channels = [child.channel.fileno() for child in self._children.all]
        next_check = min((child.check_at for child in self._children.busy()), default=math.inf)
        timeout = min(max(next_check - time.monotonic(), 0.0), IDLE_S)
        ready = wait([self._inbox.bell, *channels], timeout)
        if self._inbox.bell in ready:
            self._inbox.silence()
        for child in list(self._children.all):
            if child.channel.fileno() in ready:
                self._receive_from(child)

    def _receive_from(self, child: ChildProcess) -> None:
        """Take the replies that a child process has sent."""
        if child.task is None:  # an idle child sends nothing, so it has exited or was taken over
            self._children.end(child)
        while child.task is not None:
            try:
                raw = child.channel.receive()
                if raw is None:
                    return
                reply = read_reply(raw)
                if reply.number != child.number:
                    raise ChildReplyError(TOO_MANY)
            except (EOFError, OSError):
                self._end_child(child, "crashed")
            except ChildReplyError as reason:
                self._distrust(child, str(reason))
            else:
                self._take_reply(child, child.task, reply)

    def _take_reply(self, child: ChildProcess, task: ScoringTask, reply: ChildReply) -> None:
        if reply.score is None:
            self._end_child(child, reply.error or "", reply.is_own)
            return
        index = child.indices.popleft()
        child.number += 1
        child.question = task.question
        if task.is_trial:
            self._end_trial(child, task, "")
        if reply.error is not None:
            self._record_failure(task, index, reply.error, reply.is_own)
        else:
            if reply.reason:
                task.reasons[index] = reply.reason
            task.settle(index, reply.score)
        if child.indices:
            child.start_clock()
        else:
            self._children.release(child)

    def _distrust(self, child: ChildProcess, reason: str) -> None:
        """Kill a child process that sent what it must not.

        An earlier text may have done it, so the text that is being scored has a second try in another child.
        """
        assert child.task is not None, "a busy child has a task"
        index = child.indices[0]
        if index in child.task.suspected:
            self._end_child(child, reason)
            return
        child.task.suspected.add(index)
        self._stop(child)

    def _check_deadlines(self) -> None:
        """Kill child processes after their deadline, and let another child take over when other texts wait."""
        now = time.monotonic()
        for child in self._children.busy():
            if child.task is None or now < child.check_at:
                continue
            self._receive_from(child)  # a reply may have come while another child was killed or started
            if child.task is None or now < child.check_at:
                continue
            seconds = child.clock.seconds()
            limit = child.task.timeout_s
            if seconds >= limit:
                self._late_s += now - child.clock.started_at
                self._end_late(child, child.task)
                continue
            limit = self._try_when_slow(child, child.task, seconds)
            if not child.is_aside:
                patience = child.task.patience_s
                if child.question != child.task.question:
                    patience += SLOWER * self._time_outs.reading_s(child.task)
                if seconds < patience:
                    limit = patience
                elif self._others_wait(child) and self._children.num_aside < MAX_ASIDE:
                    self._set_aside(child)
                else:
                    limit = min(limit, seconds + patience)
            child.check_at = now + max(limit - seconds, MIN_CHECK_S)

    def _end_late(self, child: ChildProcess, task: ScoringTask) -> None:
        """Kill a child process at its deadline. Its text fails, or waits until the trial of its question has ended."""
        index = child.indices[0]
        self._time_outs.add(task, index)
        if self._time_outs.is_on_trial(task):
            self._stop(child)
        else:
            self._end_child(child, f"{LATE} {task.timeout_s:g} s")

    def _try_when_slow(self, child: ChildProcess, task: ScoringTask, seconds: float) -> float:
        """Score a trial response to the question of a slow text, while the question's other texts wait.

        `seconds` is what the text has taken. Returns the seconds after which it should be looked at again.
        """
        if not self._time_outs.needs_trial(task):
            return task.timeout_s
        begin_s = min(TRIAL_S, task.timeout_s / 2)
        if seconds < begin_s:
            return begin_s
        self._tasks.appendleft(self._time_outs.begin_trial(task))
        for other in self._children.busy():
            if other is not child and other.task is not None and self._time_outs.is_on_trial(other.task):
                self._stop(other)
        return task.timeout_s

    def _end_trial(self, child: ChildProcess, trial: ScoringTask, error: str) -> None:
        self._time_outs.end_trial(trial, error, child.clock.seconds())
        for task in self._tasks:
            if task.question == trial.question:
                # Its texts were slow because of the question.
                task.num_set_aside = 0

    def _others_wait(self, child: ChildProcess) -> bool:
        return bool(self._tasks or self._inbox.arrived) or len(child.indices) > 1

    def _set_aside(self, child: ChildProcess) -> None:
        """Let a slow child process finish the text that it is scoring, and give its other texts to another child."""
        assert child.task is not None, "a busy child has a task"
        index = child.indices.popleft()
        child.has_lost_texts = bool(child.indices)
        self._take_back(child)
        child.indices.append(index)
        child.is_aside = True
        child.task.num_set_aside += 1

    def _stop(self, child: ChildProcess) -> None:
        """Kill a child process, whose texts wait for another one."""
        self._take_back(child)
        child.task = None
        self._children.end(child)

    def _take_back(self, child: ChildProcess) -> None:
        """Take back all texts that a child process has, and put them before the texts that wait for scoring."""
        task = child.task
        assert task is not None, "only a child with a task has texts"
        if child.indices and not task.waiting:
            self._tasks.appendleft(task)
        task.waiting.extendleft(reversed(child.indices))
        child.indices.clear()

    def _end_child(self, child: ChildProcess, reason: str, is_own: bool = False) -> None:
        """Kill a child process that cannot be used any more, and fail the text that it was scoring."""
        task = child.task
        assert task is not None, "a busy child has a task"
        index = child.indices.popleft()
        if task.is_trial:
            self._end_trial(child, task, reason)
        try:
            self._stop(child)
        finally:
            self._record_failure(task, index, reason, is_own)

    def _record_failure(self, task: ScoringTask, index: int, reason: str, is_own: bool) -> None:
        if task.is_trial:
            return
        self.num_failures += 1
        if (task.verifier, reason) not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add((task.verifier, reason))
            log.warning("verifier %s: %s, on %r", task.verifier, reason, task.texts[index][:200])
        if not (is_own or task.runs_own_code):
            task.of_response.add(index)
        task.reasons[index] = reason
        task.settle(index, None)

    def _fail_everything(self, error: BroRLError) -> None:
        """Fail all scoring tasks and stop the fork server, which the next task starts again."""
        for task in (*self._tasks, *self._inbox.arrived):
            task.fail(error)
        for child in self._children.busy():
            assert child.task is not None, "a busy child has a task"
            child.task.fail(error)
        self._tasks.clear()
        self._time_outs = TimeOuts()
        self._inbox.arrived.clear()
        self._children.close_all()
        self._fork_server.close()
