"""Children that score texts under a hard deadline, and the thread that gives them work.

One child is at the *front*: it gets the texts of the waiting jobs, in order, a batch at a time. Life of a text: waiting
→ being scored → scored, or failed (deadline, crash, exception). When the front child sits on a text for longer than
`patience_s` while others wait, it is set *aside*: it may go on with this one text until the deadline, and a new child,
forked from the nursery in milliseconds, is at the front with the rest. So a verifier that hangs costs its own text, not
the time of others. At most `MAX_ASIDE` children are aside; then the front child is waited for.

The time a text has taken is wall time; of a child that wants to run and is not let, on a machine with more to do than
it can, it is the CPU time it was given, up to `MAX_STARVED` times as long.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Pipe, wait
from typing import Any

from nemo_brorl.core.errors import BroRLError, ResourceError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.tasks.scoring.jobs import Child, Job
from nemo_brorl.tasks.scoring.nursery_process import NurseryProcess
from nemo_brorl.tasks.verifiers.deadlines import Deadlines
from nemo_brorl.tasks.verifiers.registry import names_in

log = get_logger(__name__)

MAX_ASIDE = 16
MAX_STARVED = 4  # deadlines
MIN_LOOK_S = 0.02  # between two looks at a child
BATCH = 32  # texts a child is given at once
MAX_LOGGED = 20  # failures written to the log in full
IDLE_S = 5.0  # both sides look up this often even when nothing happens


class Crew:
    """Owns a nursery and its children. `score` may be called from many threads at once."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.num_failures = 0
        self.nursery = NurseryProcess()
        self._jobs: deque[Job] = deque()  # those with waiting texts, oldest first
        self._front: Child | None = None
        self._aside: list[Child] = []
        self._arrived: deque[Job] = deque()
        self._is_closed = False
        self._bell, self._ring = Pipe(duplex=False)  # rung when a job arrives
        self._lock = threading.Lock()  # of the ring
        self._thread = threading.Thread(target=self._run, name="verifier-crew", daemon=True)
        self._thread.start()

    def score(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> list[float | None]:
        """Score of each text, None where the verifier failed. Raises ConfigError when the verifier cannot be loaded,
        ResourceError when no process can be started for it."""
        seconds = self.deadlines.seconds(verifier, payload)
        job = self._run_job(Job(verifier, dict(payload), texts, seconds, deque(range(len(texts)))))
        return [job.scores[index] for index in range(len(texts))]

    def load(self, verifier: str) -> None:
        """Import a verifier and its libraries before the first text needs them. Raises as `score`."""
        self._run_job(Job(verifier, {}, (), self.deadlines.default_s))

    def close(self) -> None:
        """Kill all processes; jobs under way fail."""
        self._is_closed = True
        self._wake()
        self._thread.join()

    def children(self) -> list[int]:
        """Process ids of the current children."""
        return [child.process for child in (self._front, *self._aside) if child is not None]

    def _run_job(self, job: Job) -> Job:
        if self._is_closed:
            raise ResourceError("the verifier pool was closed")
        self._arrived.append(job)
        self._wake()
        while not job.done.wait(IDLE_S):
            if not self._thread.is_alive():
                raise ResourceError("the verifier pool was closed")
        if job.error is not None:
            raise job.error
        return job

    def _wake(self) -> None:
        with self._lock:
            self._ring.send_bytes(b"!")

    def _run(self) -> None:
        """The thread: everything below happens here."""
        while not self._is_closed:
            try:
                self._give_work()
                self._listen()
                self._judge_delays()
            except (BroRLError, OSError) as error:  # the nursery is gone, or cannot be started
                self._give_up(
                    error
                    if isinstance(error, BroRLError)
                    else ResourceError(f"the verifier processes are gone: {error}")
                )
        self._give_up(ResourceError("the verifier pool was closed"))

    def _give_work(self) -> None:
        while self._arrived:
            self._jobs.append(self._arrived.popleft())
        while self._jobs and (self._front is None or self._front.job is None):
            job = self._jobs[0]
            for verifier in names_in(job.verifier, job.payload):
                if (error := self._load(verifier)) is not None:
                    job.fail(error)
                    job.waiting.clear()
            batch = [job.waiting.popleft() for _ in range(min(BATCH, len(job.waiting)))]
            if not job.waiting:
                self._jobs.popleft()
            if batch:
                self._send(job, batch)
            else:
                job.done.set()  # there was nothing but to load

    def _load(self, verifier: str) -> BroRLError | None:
        """Make the nursery ready for a verifier. A child that was forked before is replaced: it lacks the libraries."""
        if verifier in self.nursery.loaded:
            return None
        error = self.nursery.load(verifier)
        if self._front is not None:
            self._end(self._front)
            self._front = None
        return error

    def _send(self, job: Job, batch: list[int]) -> None:
        if self._front is not None and self._front.connection.poll():  # unasked, it has nothing to say: it was killed
            self._lose(self._front, "killed")
        if self._front is None:
            self._front = self._fork()
        child = self._front
        child.job, child.texts = job, deque(batch)
        child.begin_text(self._patience_s(child))
        try:
            child.connection.send((job.verifier, job.payload, [job.texts[index] for index in batch]))
        except OSError:
            self._lose(child, "its process is gone")

    def _fork(self) -> Child:
        mine, theirs = Pipe()
        with theirs:
            return Child(self.nursery.fork(theirs.fileno()), mine)

    def _listen(self) -> None:
        """Wait until something happens: a job, a reply, a child's end, or the time at which a delay counts."""
        busy = [child for child in (self._front, *self._aside) if child is not None]
        ready = wait([self._bell, *(child.connection for child in busy)], min(self._until_next_look(), IDLE_S))
        if self._bell in ready:
            self._bell.recv_bytes()
        for child in busy:
            if child.connection in ready:
                self._hear(child)

    def _hear(self, child: Child) -> None:
        try:
            score, error = child.connection.recv()
        except (EOFError, OSError):
            self._lose(child, "crashed")
            return
        assert child.job is not None, "a child says nothing unasked"
        if error is not None:
            self._note_failure(child.job, child.texts[0], error)
        child.job.settle(child.texts.popleft(), score if error is None else None)
        child.begin_text(self._patience_s(child))
        if child in self._aside:
            self._aside.remove(child)
            self._end(child)
        elif not child.texts:
            child.job = None

    def _judge_delays(self) -> None:
        now = time.monotonic()
        for child in self._busy():
            if now < child.look_at:
                continue
            assert child.job is not None, "_busy has those with a job"
            limit = child.job.timeout_s
            taken = child.time_taken(MAX_STARVED * limit)
            if taken >= limit:
                self._lose(child, f"has not ended after {limit:g} s")
            elif (
                child is self._front
                and taken >= self._patience_s(child)
                and self._others_wait()
                and len(self._aside) < MAX_ASIDE
            ):
                self._give_back(child, child.texts.popleft())
                self._aside.append(child)
                self._front = None
            elif child is self._front:
                limit = taken + self._patience_s(child)
            child.look_at = now + max(limit - taken, MIN_LOOK_S)

    def _busy(self) -> list[Child]:
        return [child for child in (self._front, *self._aside) if child is not None and child.job is not None]

    def _patience_s(self, child: Child) -> float:
        assert child.job is not None, "only a child with a job takes time"
        return min(child.job.patience_s, child.job.timeout_s)

    def _others_wait(self) -> bool:
        return bool(self._jobs or self._arrived) or (self._front is not None and len(self._front.texts) > 1)

    def _until_next_look(self) -> float:
        """Seconds until some child may be late."""
        return max(min([child.look_at for child in self._busy()], default=math.inf) - time.monotonic(), 0.0)

    def _give_back(self, child: Child, kept: int) -> None:
        """Let others score what a child has, but for one text."""
        job = child.job
        assert job is not None, "only a child with a job has texts"
        if child.texts and not job.waiting:
            self._jobs.appendleft(job)
        job.waiting.extendleft(reversed(child.texts))
        child.texts = deque([kept])

    def _lose(self, child: Child, reason: str) -> None:
        """A child is of no use any more: its text has failed."""
        job = child.job
        text = child.texts.popleft() if job is not None else None
        if text is not None:
            self._give_back(child, text)
        if child is self._front:
            self._front = None
        else:
            self._aside.remove(child)
        try:
            self._end(child)
        finally:
            if job is not None and text is not None:
                self._note_failure(job, text, reason)
                job.settle(text, None)

    def _end(self, child: Child) -> None:
        child.connection.close()
        self.nursery.end(child.process)

    def _note_failure(self, job: Job, text: int, reason: str) -> None:
        self.num_failures += 1
        if self.num_failures <= MAX_LOGGED:
            log.warning("verifier %s: %s, on %r; the response scores 0", job.verifier, reason, job.texts[text][:200])

    def _give_up(self, error: BroRLError) -> None:
        """Fail every job; a new one starts again with a new nursery."""
        children = [child for child in (self._front, *self._aside) if child is not None]
        for job in {
            id(job): job for job in (*self._jobs, *self._arrived, *(child.job for child in children)) if job is not None
        }.values():
            job.fail(error)
        self._jobs.clear()
        self._arrived.clear()
        for child in children:
            child.connection.close()
        self._front, self._aside = None, []
        self.nursery.close()
