"""Pool of child processes that score texts under a hard deadline, and the thread that gives them work.

One child is the *front* child. It gets the texts of waiting tasks in order, a batch at a time. A text waits, is being
scored, and then is scored or has failed (deadline, crash, exception). When the front child takes longer for a text than
the task's patience while other texts wait, it is set *aside*. It may finish this text until the deadline, and a new
child, forked in milliseconds, takes the other texts. So a verifier that hangs costs its own text and not the time of
others. At most `MAX_ASIDE` children are aside; then texts wait for the front child.
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
MIN_CHECK_S = 0.02  # shortest time between two checks of a child
BATCH = 32  # texts that a child gets at once
MAX_LOGGED = 20  # failures that are logged; later ones are only counted
IDLE_S = 5.0  # longest wait of either thread when nothing happens


class ProcessPool:
    """Owner of a fork server and its children, which score texts. Many threads may call `score` at once."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.num_failures = 0
        self._fork_server = ForkServer()
        self._tasks: deque[ScoringTask] = deque()  # tasks with waiting texts, oldest first
        self._children = Children(self._fork_server)
        self._has_logged_gaps = False
        self._inbox: Inbox[ScoringTask] = Inbox()
        self._is_closed = False
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
        seconds = self.deadlines.seconds(verifier, payload)
        task = ScoringTask(verifier, dict(payload), texts, seconds)
        task.waiting.extend(range(len(texts)))
        self._wait_for(task)
        scores = [task.scores[index] for index in range(len(texts))]
        return Verdicts(scores, task.reasons)

    def load(self, verifier: str) -> None:
        """Import a verifier and its libraries before the first text needs them.

        Raises ConfigError when the verifier cannot be loaded, and ResourceError when no process can be started.
        """
        self._wait_for(ScoringTask(verifier, {}, (), self.deadlines.default_s))

    def close(self) -> None:
        """Kill all child processes of the pool, and fail the scoring tasks that are running."""
        self._is_closed = True
        self._inbox.ring()
        self._thread.join()

    def child_pids(self) -> list[int]:
        """Return the process ids of the child processes that score texts."""
        return [child.process for child in self._children.all()]

    def _wait_for(self, task: ScoringTask) -> None:
        """Hand a scoring task to the thread that owns the verifier processes, and wait until it is done.

        Raises the error of a failed task.
        """
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
        self._fail_everything(ResourceError("the verifier pool was closed"))

    def _hand_out_texts(self) -> None:
        """Send the texts of waiting scoring tasks, a batch at a time, to the child process that gets new texts.

        Nothing is sent while this child is busy.
        """
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
                task.done.set()  # the task had no texts, only verifiers to load

    def _next_task(self) -> ScoringTask:
        """Return the scoring task whose texts are next: the oldest one, or the oldest that the current child may score.

        The second rule holds while the current child process serves one prompt alone.
        """
        front = self._children.front
        if front is not None and front.isolation.prompt is not None:
            for task in self._tasks:
                if task.isolation == front.isolation:
                    return task
        return self._tasks[0]

    def _load_verifiers(self, task: ScoringTask) -> None:
        """Have the fork server load the verifiers of a scoring task, which fails when one cannot be loaded.

        Idle children are killed when a library is new, since they were forked without it.
        """
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
        """Wait for a scoring task, a score, the end of a child process, or the next check of deadlines."""
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
        if task is None:  # an idle child sends nothing, so it has exited or was taken over
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
        """Kill child processes after their deadline, and let another child take over when other texts wait."""
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
        """Let a slow child process finish the text that it is scoring, and give its other texts to another child."""
        index = child.indices.popleft()
        self._take_back(child)
        child.indices.append(index)
        self._children.set_front_aside()

    def _take_back(self, child: ChildProcess) -> None:
        """Take back all texts that a child process has, and put them before the texts that wait for scoring."""
        task = child.task
        assert task is not None, "only a child with a task has texts"
        if child.indices and not task.waiting:
            self._tasks.appendleft(task)
        task.waiting.extendleft(reversed(child.indices))
        child.indices.clear()

    def _end_child(self, child: ChildProcess, reason: str) -> None:
        """Kill a child process that cannot be used any more, and fail the text that it was scoring."""
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
        """Fail all scoring tasks and stop the fork server, which the next task starts again."""
        for task in (*self._tasks, *self._inbox.arrived):
            task.fail(error)
        for child in self._children.busy():
            assert child.task is not None, "a busy child has a task"
            child.task.fail(error)
        self._tasks.clear()
        self._inbox.arrived.clear()
        self._children.close_all()
        self._fork_server.close()
