"""The chunks that an engine is sampling now.

Only the engine's thread that calls vLLM uses this module. It imports neither torch nor vllm.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Protocol

from nemo_brorl.generation.chunk_messages import ChunkFailure, ChunkMeta, ChunkProgress, Progress, ReturnedChunk
from nemo_brorl.generation.chunk_task import ChunkTask, Continuation, RolloutTask
from nemo_brorl.generation.progress import ProgressReports
from nemo_brorl.types import Sampling


class Requests(Protocol):
    """Rollouts in vLLM's batch. `VllmRequests` implements it."""

    vocab_size: int

    def add(
        self,
        names: Sequence[str],
        tasks: Sequence[RolloutTask],
        sampling: Sampling,
    ) -> list[str]: ...

    def step(self) -> list[tuple[str, Continuation]]: ...

    def num_tokens(self, identity: str) -> int | None: ...

    def so_far(self, identity: str) -> Continuation: ...

    def abort(self, identities: Sequence[str]) -> None: ...

    def set_version(self, version: int) -> None: ...


class ChunkBatch:
    """All chunks that one engine is sampling.

    Life of a chunk: `add` queues its rollouts, each `step` samples a token for all rollouts in the batch, and the chunk
    is answered when its last rollout has ended. `cut` and the request's deadline answer it earlier, with what it has.
    `withdraw` and `abort` drop it and answer with `ReturnedChunk`.

    `cut` and `abort` may arrive before the chunk does. Their call ids are remembered until it comes.
    """

    def __init__(self, requests: Requests) -> None:
        self.version = 0
        self.num_tokens = 0  # sampled tokens of answered chunks
        self.num_samples = 0  # ended rollouts of answered chunks
        self.num_resumed = 0  # tokens of prompts and prefixes that rollouts were resumed from
        self.num_cached = 0  # resumed tokens that the prefix cache had
        self._requests = requests
        self._chunks: dict[int, ChunkTask] = {}  # key: call id
        self._rollouts: dict[str, tuple[ChunkTask, int]] = {}  # unfinished rollouts: name → (chunk, row)
        self._cut_early: set[int] = set()
        self._dropped_early: set[int] = set()
        self._failure: ChunkFailure | None = None
        self._reports = ProgressReports()
        self.set_version(0)

    @property
    def is_idle(self) -> bool:
        """Return True if the engine has no rollouts to sample, or has failed."""
        return not self._chunks or self._failure is not None

    def set_version(self, version: int) -> None:
        """Set the policy version that is recorded for all tokens sampled from now on."""
        self.version = version
        self._requests.set_version(version)

    def add(self, chunk: ChunkTask) -> None:
        """Queue all rollouts of a chunk (rollouts of one prompt) in vLLM's batch."""
        if self._failure is not None:
            chunk.answer.set_result((self._failure, None, None))
            return
        # An idle engine owes no report, so the time to the next one starts here.
        if not self._chunks:
            self._reports.times.mark_started(time.monotonic())
        self._chunks[chunk.call_id] = chunk
        # `abort` may arrive before its chunk, because Ray fetches the chunk's tokens first.
        if chunk.call_id in self._dropped_early:
            self._drop(chunk)
            return
        tasks = list(chunk.rollouts())
        names = [f"{chunk.call_id}/{task.row}" for task in tasks]
        chunk.ids = self._requests.add(names, tasks, chunk.request.sampling)
        for name, task in zip(names, tasks, strict=True):
            self._rollouts[name] = (chunk, task.row)
        if chunk.call_id in self._cut_early:
            self.cut([chunk.call_id])

    def step(self) -> None:
        """Run one step of vLLM, and send the driver each chunk of rollouts whose last rollout ends in this step."""
        ended = self._requests.step()
        for name, continuation in ended:
            chunk, row = self._rollouts.pop(name)
            chunk.put(row, continuation)
            self._reports.times.record_finished()
            if chunk.is_finished:
                self._answer(chunk)
        now = time.monotonic()
        self._mark_started(now)
        self._cut_overdue(now)
        if self._chunks and self._reports.is_due(now):
            self._reports.tell(self._progress(), now)

    def report(
        self,
        every: int,
        within_s: float,
        question: Future[Progress],
    ) -> None:
        """Store the driver's request for a progress report, the future `question`.

        It resolves to the progress of started chunks of rollouts once `every` more rollouts have ended or `within_s`
        seconds have passed since the last report (see `ReportTimes`).
        """
        self._reports.ask(every, within_s, question)

    def cut(self, call_ids: Collection[int]) -> None:
        """Stop sampling these chunks of rollouts, and answer each with the tokens sampled so far."""
        for call_id in call_ids:
            chunk = self._chunks.get(call_id)
            if chunk is None:
                self._cut_early.add(call_id)
                continue
            for row in chunk.missing():
                identity = chunk.ids[row]
                chunk.put(row, self._requests.so_far(identity))
            self._remove_rollouts(chunk)
            self._answer(chunk)

    def withdraw(self, call_id: int) -> bool:
        """Drop a chunk of rollouts if no token of it was sampled yet, and return True if it was dropped."""
        chunk = self._chunks.get(call_id)
        if chunk is None:
            return False
        for identity in chunk.ids:
            if self._requests.num_tokens(identity) != 0:
                return False
        self._drop(chunk)
        return True

    def abort(self, call_ids: Collection[int]) -> None:
        """Drop the named chunks of rollouts, which must be all chunks of the engine.

        No other chunk is on its way to the engine, and the driver waits for no progress report.
        """
        self._reports.drop()
        self._cut_early.clear()
        self._dropped_early = set(call_ids) - self._chunks.keys()
        for chunk in list(self._chunks.values()):
            self._drop(chunk)

    def fail(self, failure: ChunkFailure) -> None:
        """Answer every request for a chunk of rollouts, open or still to come, with a failure of the engine."""
        self._failure = failure
        for chunk in self._chunks.values():
            chunk.answer.set_result((failure, None, None))
        self._chunks.clear()
        self._rollouts.clear()

    def _mark_started(self, now: float) -> None:
        for chunk in self._chunks.values():
            # vLLM starts with the first rollout of a chunk.
            first = chunk.ids[0]
            if chunk.started_at is None and self._requests.num_tokens(first) != 0:
                chunk.started_at = now

    def _cut_overdue(self, now: float) -> None:
        for chunk in list(self._chunks.values()):
            deadline_s = chunk.request.deadline_s
            if deadline_s is None or chunk.started_at is None:
                continue
            if now - chunk.started_at > deadline_s:
                self.cut([chunk.call_id])

    def _news(self, now: float) -> Progress:
        """Return the progress of the engine's chunks of rollouts, which is sent along with the answer for one chunk.

        It is () if the driver got a progress report just now. With hundreds of small chunks, a report with every answer
        would take longer than sampling.
        """
        if not self._reports.times.may_report(now):
            return ()
        self._reports.times.mark_reported(now)
        return self._progress()

    def _progress(self) -> Progress:
        """Return the progress of every chunk of rollouts in the batch of which sampling has started."""
        progress = []
        for chunk in self._chunks.values():
            num_running = 0  # rollouts that have started and not ended
            num_waiting = 0
            num_tokens = 0  # tokens of the running rollouts
            for row in chunk.missing():
                sampled = self._requests.num_tokens(chunk.ids[row])
                if sampled:
                    num_running += 1
                    num_tokens += sampled + chunk.num_resumed(row)
                # None: the rollout ended in this step, and `put` was not called yet.
                elif sampled == 0:
                    num_waiting += 1
            num_started = len(chunk.ids) - num_waiting
            if num_started:
                news = ChunkProgress(
                    call_id=chunk.call_id,
                    num_started=num_started,
                    num_ended=num_started - num_running,
                    age=num_tokens / max(1, num_running),
                )
                progress.append(news)
        return tuple(progress)

    def _answer(self, chunk: ChunkTask) -> None:
        del self._chunks[chunk.call_id]
        vocab_size = self._requests.vocab_size
        meta, arrays, partial = chunk.reply(self.version, vocab_size)
        if isinstance(meta, ChunkMeta):
            meta = dataclasses.replace(meta, progress=self._news(time.monotonic()), period=chunk.period())
            self.num_samples += len(meta.lengths)
            self.num_tokens += chunk.num_sampled
            num_resumed, num_cached = chunk.prefix_hits()
            self.num_resumed += num_resumed
            self.num_cached += num_cached
        chunk.answer.set_result((meta, arrays, partial))

    def _drop(self, chunk: ChunkTask) -> None:
        self._remove_rollouts(chunk)
        del self._chunks[chunk.call_id]
        chunk.answer.set_result((ReturnedChunk(), None, None))

    def _remove_rollouts(self, chunk: ChunkTask) -> None:
        """Remove the unfinished rollouts of a chunk from vLLM's batch."""
        self._requests.abort(chunk.ids)
        for row in range(len(chunk.ids)):
            self._rollouts.pop(f"{chunk.call_id}/{row}", None)
