"""What a sampling session has in flight: the chunks on its engines, and open calls with their callbacks.

Nothing in this module waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_brorl.generation.chunk_messages import Progress


@dataclass
class ChunkInFlight:
    """A chunk that an engine was given and has not answered."""

    call_id: int
    engine: int
    chunk: int
    num_rollouts: int
    meta: Any  # reference to the future ChunkMeta
    data: Any  # reference to the future ChunkArrays of the ended rollouts
    partial: Any  # reference to the future ChunkArrays of rollouts that are cut off
    is_asked_back: bool = False  # `withdraw` was called and is not answered
    is_given_back: bool = False


@dataclass
class EngineInUse:
    """An engine to which a session gives chunks."""

    actor: Any
    chunks: dict[int, ChunkInFlight] = field(default_factory=dict)  # key: call id
    last_progress: Progress | None = None

    @property
    def num_rollouts(self) -> int:
        """Return the number of rollouts in all chunks on the engine, with ended rollouts included."""
        return sum(chunk.num_rollouts for chunk in self.chunks.values())


class OpenCall(NamedTuple):
    """A call to an engine that is not answered yet."""

    engine: int
    on_result: Callable[[Any], None]  # gets the result, or the exception that the call raised


class InFlight:
    """Everything that a session has in flight: engines, chunks and open calls."""

    def __init__(self) -> None:
        self.engines: dict[int, EngineInUse] = {}  # engines that the placement knows
        self.chunks: dict[int, ChunkInFlight] = {}  # key: chunk number
        self._open_calls: dict[Any, OpenCall] = {}  # key: reference

    def references(self) -> list[Any]:
        """Return the Ray references of all calls to engines that are not answered yet."""
        return list(self._open_calls)

    def busy_engines(self) -> frozenset[int]:
        """Return the indices of the engines that have rollouts to sample.

        It is safe to call from any thread.
        """
        engines = list(self.engines.items())
        return frozenset(index for index, engine in engines if engine.chunks)

    def add_engine(self, index: int, actor: Any) -> None:
        """Add a vLLM engine that has no rollouts yet."""
        self.engines[index] = EngineInUse(actor)

    def drop_engine(self, index: int) -> list[ChunkInFlight]:
        """Remove an engine and its unanswered calls, and return the chunks of rollouts that it was sampling."""
        for reference, call in list(self._open_calls.items()):
            if call.engine == index:
                del self._open_calls[reference]
        lost = list(self.engines.pop(index).chunks.values())
        for in_flight in lost:
            del self.chunks[in_flight.chunk]
        return lost

    def add(self, in_flight: ChunkInFlight) -> None:
        """Record that an engine was given a chunk of rollouts."""
        self.chunks[in_flight.chunk] = in_flight
        self.engines[in_flight.engine].chunks[in_flight.call_id] = in_flight

    def remove(self, in_flight: ChunkInFlight) -> None:
        """Remove a chunk of rollouts from its engine, and stop waiting for the engine's reply."""
        del self.chunks[in_flight.chunk]
        del self.engines[in_flight.engine].chunks[in_flight.call_id]
        self._open_calls.pop(in_flight.meta, None)

    def expect(
        self,
        reference: Any,
        engine: int,
        on_result: Callable[..., None],
        *args: Any,
    ) -> None:
        """Register `on_result(*args, result)` as the callback of an unanswered call to an engine."""
        self._open_calls[reference] = OpenCall(engine, functools.partial(on_result, *args))

    def take_result(self, reference: Any, result: Any) -> None:
        """Run the callback of a call to an engine that was answered.

        Nothing is done if the engine was removed meanwhile.
        """
        call = self._open_calls.pop(reference, None)
        if call is not None:
            call.on_result(result)
