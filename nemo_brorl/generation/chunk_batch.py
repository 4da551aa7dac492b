"""The chunks in one engine's batch. Everything here happens on the engine's vLLM thread."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Protocol

from nemo_brorl.generation.chunk_task import (
    ChunkFailure,
    ChunkMeta,
    ChunkProgress,
    ChunkWork,
    Continuation,
    RolloutTask,
    Withdrawn,
)
from nemo_brorl.generation.progress_report import News, Reports
from nemo_brorl.types import Sampling


class Requests(Protocol):
    """What `VllmRequests` offers."""

    vocab_size: int

    def add(self, name: str, task: RolloutTask, sampling: Sampling) -> str: ...

    def step(self) -> list[tuple[str, Continuation]]: ...

    def num_tokens(self, identity: str) -> int | None: ...

    def so_far(self, identity: str) -> Continuation: ...

    def abort(self, identities: Sequence[str]) -> None: ...

    def set_version(self, version: int) -> None: ...


class ChunkBatch:
    """Life of a chunk: `add` queues its rollouts → `step`s sample them together with everything else → answered when
    its last one has ended, or earlier, by `cut` or the request's deadline; `withdraw` and `abort` drop it, with
    `Withdrawn` as the answer.

    `cut` and `abort` may overtake the chunk on its way here: flights that are not known are remembered.
    """

    def __init__(self, requests: Requests) -> None:
        self.version = 0
        self.num_tokens = 0  # sampled so far
        self.num_samples = 0  # rollouts that have ended
        self._requests = requests
        self._chunks: dict[int, ChunkWork] = {}  # by flight
        self._rollouts: dict[str, tuple[ChunkWork, int]] = {}  # unfinished, by name: chunk and row
        self._cut_early: set[int] = set()
        self._dropped_early: set[int] = set()
        self._failure: ChunkFailure | None = None
        self._reports = Reports()
        self.set_version(0)

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing, or must not be made."""
        return not self._chunks or self._failure is not None

    def set_version(self, version: int) -> None:
        """Tokens sampled from now on are of this policy version."""
        self.version = version
        self._requests.set_version(version)

    def add(self, chunk: ChunkWork) -> None:
        """Queue a chunk's rollouts."""
        if self._failure is not None:
            chunk.answer.set_result((self._failure, None, None))
            return
        if not self._chunks:
            self._reports.note_begun(time.monotonic())
        self._chunks[chunk.flight] = chunk
        if chunk.flight in self._dropped_early:
            self._drop(chunk)
            return
        for task in chunk.tasks():
            name = f"{chunk.flight}/{task.row}"
            chunk.ids.append(self._requests.add(name, task, chunk.request.sampling))
            self._rollouts[name] = chunk, task.row
        if chunk.flight in self._cut_early:
            self.cut([chunk.flight])

    def step(self) -> None:
        """One step; answers the chunks it finishes."""
        for name, continuation in self._requests.step():
            chunk, row = self._rollouts.pop(name)
            chunk.put(row, continuation)
            self._reports.note_ended()
            if chunk.is_finished:
                self._answer(chunk)
        now = time.monotonic()
        self._cut_overdue(now)
        if self._chunks and self._reports.is_due(now):
            self._reports.tell(self._progress(), now)

    def report(self, every: int, within_s: float, answer: Future[News]) -> None:
        """Tell `answer` how far all chunks are, as `Reports` says when."""
        self._reports.ask(every, within_s, answer)

    def cut(self, flights: Collection[int]) -> None:
        """End these chunks with what they have."""
        self._cut_early |= set(flights) - self._chunks.keys()
        for chunk in [self._chunks[flight] for flight in flights if flight in self._chunks]:
            for row in chunk.missing():
                chunk.put(row, self._requests.so_far(chunk.ids[row]))
            self._forget(chunk)
            self._answer(chunk)

    def withdraw(self, flight: int) -> bool:
        """Drop a chunk unless a token of it was sampled; whether it was dropped."""
        chunk = self._chunks.get(flight)
        if chunk is None or any(self._requests.num_tokens(identity) != 0 for identity in chunk.ids):
            return False
        self._drop(chunk)
        return True

    def abort(self, flights: Collection[int]) -> None:
        """Drop these chunks. Nothing else is in flight, here or on its way, and nobody waits for a report."""
        self._reports.drop()
        self._cut_early.clear()
        self._dropped_early = set(flights) - self._chunks.keys()
        for chunk in list(self._chunks.values()):
            self._drop(chunk)

    def fail(self, failure: ChunkFailure) -> None:
        """Answer everything in flight, and everything that comes later, with this."""
        self._failure = failure
        for chunk in self._chunks.values():
            chunk.answer.set_result((failure, None, None))
        self._chunks.clear()
        self._rollouts.clear()

    def _cut_overdue(self, now: float) -> None:
        for chunk in list(self._chunks.values()):
            limit = chunk.request.deadline_s
            if limit is None:
                continue
            if (
                chunk.begun_at is None and self._requests.num_tokens(chunk.ids[0]) != 0
            ):  # vLLM begins with the first of a chunk
                chunk.begun_at = now
            if chunk.begun_at is not None and now - chunk.begun_at > limit:
                self.cut([chunk.flight])

    def _progress(self) -> tuple[ChunkProgress, ...]:
        """Of every chunk in the batch that has begun."""
        news = []
        for chunk in self._chunks.values():
            counts = {row: self._requests.num_tokens(chunk.ids[row]) for row in chunk.missing()}
            ages = [num + chunk.num_resumed(row) for row, num in counts.items() if num]
            num_ended = len(chunk.ids) - sum(
                num is not None for num in counts.values()
            )  # None: in this step, and not yet put
            if ages or num_ended:
                age = sum(ages) / len(ages) if ages else 0.0
                news.append(ChunkProgress(chunk.flight, num_ended + len(ages), num_ended, age))
        return tuple(news)

    def _answer(self, chunk: ChunkWork) -> None:
        del self._chunks[chunk.flight]
        reply = chunk.reply(self.version, self._requests.vocab_size)
        meta = reply[0]
        if isinstance(meta, ChunkMeta):
            reply = (dataclasses.replace(meta, progress=self._progress()), *reply[1:])
            self._reports.note_told(time.monotonic())
            self.num_samples += len(meta.lengths)
            self.num_tokens += chunk.num_sampled
        chunk.answer.set_result(reply)

    def _drop(self, chunk: ChunkWork) -> None:
        self._forget(chunk)
        del self._chunks[chunk.flight]
        chunk.answer.set_result((Withdrawn(), None, None))

    def _forget(self, chunk: ChunkWork) -> None:
        """Take what is left of a chunk out of the batch."""
        self._requests.abort(chunk.ids)
        for row in range(len(chunk.ids)):
            self._rollouts.pop(f"{chunk.flight}/{row}", None)
