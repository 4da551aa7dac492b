"""One call of `VllmPool.generate`: requests out to engines, chunks back as they finish, dead engines replaced on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from nemo_brorl.generation.engine import ChunkFailure, ChunkMeta
from nemo_brorl.generation.slot import ENGINE_FAILURES, EngineSlot, PublishedWeights, get_or_failure
from nemo_brorl.rollouts.placement import ChunkPlacement
from nemo_brorl.types import RolloutChunk, RolloutRequest


@dataclass(frozen=True)
class _Flight:
    """A chunk an engine is sampling."""

    engine: int
    chunk: int
    data: Any  # ObjectRef of the ChunkArrays to be
    deadline: float  # time.monotonic()


class SamplingRun:
    """Life of a run: `chunks` is iterated to its end, or `abort` drops what is in flight. Used once.

    The driver waits on two kinds of references: the small return of each chunk in flight, and engines that are starting.
    An engine that dies, fails a chunk or keeps one longer than `timeout_s` is replaced and its chunks are placed again.
    """

    def __init__(
        self,
        slots: Sequence[EngineSlot],
        requests: Sequence[RolloutRequest],
        published: PublishedWeights | None,
        max_rollouts: int,
        timeout_s: float,
    ) -> None:
        self._slots = slots
        self._requests = requests
        self._published = published
        self._timeout_s = timeout_s
        self._placement = ChunkPlacement(requests, max_rollouts)
        self._flights: dict[Any, _Flight] = {}  # by the reference to the ChunkMeta to be
        self._starting: dict[Any, tuple[EngineSlot, float]] = {}  # by the slot's `starting`, with a deadline
        for slot in slots:
            self._admit(slot)

    def chunks(self) -> Iterator[RolloutChunk]:
        """Chunks as they finish. Raises GenerationError when an engine cannot be brought back."""
        while not self._placement.is_finished:
            self._dispatch()
            for reference in self._wait():
                yield from self._resolve(reference)
            self._replace_overdue()

    def _resolve(self, reference: Any) -> Iterator[RolloutChunk]:
        if reference in self._starting:
            self._finish_start(reference)
        elif reference in self._flights:  # else its engine was lost a moment ago
            yield from self._collect(reference)

    def abort(self) -> None:
        """Drop what is in flight and wait until the engines are idle. Engines that do not answer are replaced."""
        busy = {flight.engine for flight in self._flights.values()}
        replies = {engine: self._slots[engine].actor.abort.remote() for engine in busy}
        for engine, reply in replies.items():
            try:
                ray.get([reply, *(meta for meta, flight in self._flights.items() if flight.engine == engine)], timeout=self._timeout_s)
            except ENGINE_FAILURES as cause:
                self._slots[engine].replace(cause, self._published)
        self._flights.clear()

    def _admit(self, slot: EngineSlot) -> None:
        if slot.starting is None:
            self._placement.add_engine(slot.index)
        else:
            self._starting[slot.starting] = (slot, time.monotonic() + self._timeout_s)

    def _dispatch(self) -> None:
        while (assignment := self._placement.assign()) is not None:
            engine, chunk = assignment
            meta, data = self._slots[engine].actor.generate.remote(self._requests[chunk])
            self._flights[meta] = _Flight(engine, chunk, data, time.monotonic() + self._timeout_s)

    def _wait(self) -> list[Any]:
        """References that have resolved: at least one, unless a deadline passes first."""
        references = [*self._flights, *self._starting]
        deadlines = [flight.deadline for flight in self._flights.values()] + [deadline for _, deadline in self._starting.values()]
        ray.wait(references, num_returns=1, timeout=max(0.0, min(deadlines) - time.monotonic()), fetch_local=False)
        resolved, _ = ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)
        return resolved

    def _collect(self, reference: Any) -> Iterator[RolloutChunk]:
        flight = self._flights[reference]
        meta: ChunkMeta = get_or_failure(reference, self._timeout_s)
        if isinstance(meta, ChunkFailure | Exception):
            self._lose(flight.engine, meta)
            return
        del self._flights[reference]
        self._placement.finish(flight.engine, flight.chunk)
        self._dispatch()  # before the consumer gets its turn: the engine should not wait for it
        yield RolloutChunk(
            request=self._requests[flight.chunk],
            indices=self._requests[flight.chunk].indices,
            lengths=meta.lengths,
            is_stopped=meta.is_stopped,
            version=meta.version,
            newest_version=meta.version,
            engine=flight.engine,
            data=flight.data,
        )

    def _finish_start(self, reference: Any) -> None:
        slot, _ = self._starting.pop(reference)
        try:
            ray.get(reference)
        except ENGINE_FAILURES as cause:
            slot.replace(cause, self._published)
        else:
            slot.starting = None
        self._admit(slot)

    def _lose(self, engine: int, cause: object) -> None:
        self._placement.lose(engine)
        self._flights = {meta: flight for meta, flight in self._flights.items() if flight.engine != engine}
        self._slots[engine].replace(cause, self._published)
        self._admit(self._slots[engine])

    def _replace_overdue(self) -> None:
        now = time.monotonic()
        cause = TimeoutError(f"no answer within generation.timeout_s={self._timeout_s:g}")
        for engine in sorted({flight.engine for flight in self._flights.values() if flight.deadline < now}):
            self._lose(engine, cause)
        for reference, (slot, deadline) in list(self._starting.items()):
            if deadline < now:
                del self._starting[reference]
                slot.replace(cause, self._published)
                self._admit(slot)
