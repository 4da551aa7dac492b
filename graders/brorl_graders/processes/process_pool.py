"""Pool of child processes that score texts under a hard deadline, and the thread that gives them work.

One child is at the *front*: it gets the texts of the waiting tasks, in order, a batch at a time. Life of a text:
waiting → being scored → scored, or failed (deadline, crash, exception). When the front child sits on a text for longer
than the task's patience while others wait, it is set *aside*: it may go on with this one text until the deadline, and
a new child, forked in milliseconds, is at the front with the rest. So a verifier that hangs costs its own text, not the
time of others. At most `MAX_ASIDE` children are aside; then the front child is waited for.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from brorl_graders.base.errors import BroRLError, ResourceError
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.verdicts import LATE, Verdicts
from brorl_graders.processes.child import ChildReplyError, read_reply
from brorl_graders.processes.child_process import ChildProcess, Children, Inbox, ScoringTask
from brorl_graders.processes.fork_server import ForkServer
from brorl_graders.verifiers.registry import templates

log = logging.getLogger(__name__)

MAX_ASIDE = 16
MIN_CHECK_S = 0.02  # between two looks at a child
BATCH = 32  # texts a child is given at once
MAX_LOGGED = 20  # failures written to the log in full
IDLE_S = 5.0  # both sides look up this often even when nothing happens


class ProcessPool:
    """Owns a fork server and its children. `score` may be called from many threads at once."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.num_failures = 0
        self._fork_server = ForkServer()
        self._tasks: deque[ScoringTask] = deque()  # those with waiting texts, oldest first
        self._children = Children(self._fork_server)
        self._has_logged_gaps = False
        self._inbox: Inbox[ScoringTask] = Inbox()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="verifier-processes", daemon=True)
        self._thread.start()

    def score(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> list[float | None]:
        """Score of each text, None where the verifier failed. Raises ConfigError when the verifier cannot be loaded,
        ResourceError when no process can be started for it."""
        return self.judge(verifier, payload, texts).scores

    def judge(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> Verdicts:
        """The same, with why verifiers failed and what they say of their scores."""
        seconds = self.deadlines.seconds(verifier, payload)
        task = ScoringTask(verifier, dict(payload), texts, seconds)
        task.waiting.extend(range(len(texts)))
        self._wait_for(task)
        scores = [task.scores[index] for index in range(len(texts))]
        return Verdicts(scores, task.reasons)

    def load(self, verifier: str) -> None:
        """Import a verifier and its libraries before the first text needs them. Raises as `score`."""
        self._wait_for(ScoringTask(verifier, {}, (), self.deadlines.default_s))

    def close(self) -> None:
        """Kill all processes; tasks under way fail."""
        self._is_closed = True
        self._inbox.ring()
        self._thread.join()

    def child_pids(self) -> list[int]:
        """Process ids of the current children."""
        return [child.process for child in self._children.all()]

    def _wait_for(self, task: ScoringTask) -> None:
        """Hand a task to the thread, and return when it is done. Raises what it failed with."""
        if self._is_closed:
            raise ResourceError("the verifier pool was closed")
        self._inbox.put(task)
        while not task.done.wait(IDLE_S):
            if not self._thread.is_alive():
                raise ResourceError("the verifier pool was closed")
        if task.error is not None:
            raise task.error

    def _run(self) -> None:
        """Work of the thread: everything below happens in it."""
        while not self._is_closed:
            try:
                self._hand_out_texts()
                self._receive_scores()
                self._check_deadlines()
            except BroRLError as error:  # the fork server is gone, or cannot be started
                self._fail_everything(error)
            except OSError as error:
                self._fail_everything(ResourceError(f"the verifier processes are gone: {error}"))
        self._fail_everything(ResourceError("the verifier pool was closed"))

    def _hand_out_texts(self) -> None:
        """Give the front child a batch of a task, unless it has one."""
        children = self._children
        while self._inbox.arrived:
            self._tasks.append(self._inbox.arrived.popleft())
        while self._tasks and (children.front is None or children.front.task is None):
            task = self._next_task()
            self._load_verifiers(task)
            batch: list[int] = []
            while task.waiting and len(batch) < BATCH:
                batch.append(task.waiting.popleft())
            if not task.waiting:
                self._tasks.remove(task)
            if batch:
                self._send(task, batch)
            else:
                task.done.set()  # there was nothing but to load

    def _next_task(self) -> ScoringTask:
        """The oldest; while a child is there that serves one prompt, the oldest of that prompt, if there is one."""
        front = self._children.front
        if front is not None and front.isolation.prompt is not None:
            for task in self._tasks:
                if task.isolation == front.isolation:
                    return task
        return self._tasks[0]

    def _load_verifiers(self, task: ScoringTask) -> None:
        """Have the fork server load what a task needs. Idle children, which lack a library, are ended; the task fails
        where there is no such verifier."""
        for template in templates(task.verifier, task.payload):
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
        child = self._children.bring_to_front(task.isolation)
        child.task = task
        child.indices = deque(batch)
        child.start_clocks()
        texts = [task.texts[index] for index in batch]
        try:
            child.connection.send((task.verifier, task.payload, texts))
        except OSError:
            self._end_child(child, "its process is gone")

    def _receive_scores(self) -> None:
        """Wait until something happens: a task, a score, a child's end, or the time at which a delay counts."""
        children = self._children.all()
        connections = [child.connection for child in children]
        next_check = min((child.check_at for child in self._children.busy()), default=math.inf)
        timeout = min(max(next_check - time.monotonic(), 0.0), IDLE_S)
        ready = wait([self._inbox.bell, *connections], timeout)
        if self._inbox.bell in ready:
            self._inbox.silence()
        for child in children:
            if child.connection in ready:
                self._receive_score(child)

    def _receive_score(self, child: ChildProcess) -> None:
        task = child.task
        if task is None:  # it has nothing to say unasked
            self._children.end(child)
            return
        try:
            reply = read_reply(child.connection)
        except (EOFError, OSError):
            self._end_child(child, "crashed")
            return
        except ChildReplyError as reason:
            self._end_child(child, str(reason))
            return
        index = child.indices.popleft()
        if reply.error is not None:
            self._record_failure(task, index, reply.error)
        else:
            if reply.reason:
                task.reasons[index] = reply.reason
            task.settle(index, reply.score)
        if child in self._children.aside:
            self._children.end(child)
        elif child.indices:
            child.start_clocks()
        else:
            child.task = None

    def _check_deadlines(self) -> None:
        """End the children that have taken too long for a text, and set the front child aside when others wait."""
        now = time.monotonic()
        for child in self._children.busy():
            if now < child.check_at:
                continue
            assert child.task is not None, "a busy child has a task"
            seconds = child.seconds_taken()
            if seconds >= child.task.timeout_s:
                self._end_child(child, f"{LATE} {child.task.timeout_s:g} s")
                continue
            is_front = child is self._children.front
            may_be_set_aside = is_front and len(self._children.aside) < MAX_ASIDE
            if may_be_set_aside and seconds >= child.task.patience_s and self._others_wait():
                self._set_aside(child)
            next_limit = child.task.timeout_s
            if child is self._children.front:
                next_limit = min(next_limit, seconds + child.task.patience_s)
            child.check_at = now + max(next_limit - seconds, MIN_CHECK_S)

    def _others_wait(self) -> bool:
        front = self._children.front
        front_has_more = front is not None and len(front.indices) > 1
        return bool(self._tasks or self._inbox.arrived) or front_has_more

    def _set_aside(self, child: ChildProcess) -> None:
        """Let the front child go on with its first text, and others score the rest."""
        index = child.indices.popleft()
        self._take_back(child)
        child.indices.append(index)
        self._children.set_front_aside()

    def _take_back(self, child: ChildProcess) -> None:
        """Put the texts of a child at the head of those that wait."""
        task = child.task
        assert task is not None, "only a child with a task has texts"
        if child.indices and not task.waiting:
            self._tasks.appendleft(task)
        task.waiting.extendleft(reversed(child.indices))
        child.indices.clear()

    def _end_child(self, child: ChildProcess, reason: str) -> None:
        """End a child that is of no use any more: the text that it was scoring has failed."""
        task = child.task
        index = None
        if task is not None:
            index = child.indices.popleft()
            self._take_back(child)
        try:
            self._children.end(child)
        finally:
            if task is not None and index is not None:
                self._record_failure(task, index, reason)

    def _record_failure(self, task: ScoringTask, index: int, reason: str) -> None:
        self.num_failures += 1
        if self.num_failures <= MAX_LOGGED:
            log.warning("verifier %s: %s, on %r; the response scores 0", task.verifier, reason, task.texts[index][:200])
        task.reasons[index] = reason
        task.settle(index, None)

    def _fail_everything(self, error: BroRLError) -> None:
        """Fail every task; a new one starts again with a new fork server."""
        for task in (*self._tasks, *self._inbox.arrived):
            task.fail(error)
        for child in self._children.busy():
            assert child.task is not None, "a busy child has a task"
            child.task.fail(error)
        self._tasks.clear()
        self._inbox.arrived.clear()
        self._children.close_all()
        self._fork_server.close()
