"""What a session has under way on its engines: their chunks, and every open call with what is to be done when it is
answered. Waits for nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_brorl.generation.chunk_messages import Progress


@dataclass
class ChunkInFlight:
    """A chunk that an engine was given."""

    call_id: int
    engine: int
    chunk: int
    num_rollouts: int
    meta: Any  # reference to the ChunkMeta to be
    data: Any  # reference to the ChunkArrays to be
    partial: Any  # reference to the ChunkArrays of what will have been cut
    is_asked_back: bool = False  # and the engine has not answered that
    is_given_back: bool = False


@dataclass
class EngineInUse:
    """An engine that a session gives chunks to."""

    actor: Any
    chunks: dict[int, ChunkInFlight] = field(default_factory=dict)  # by call
    last_progress: Progress | None = None

    @property
    def num_rollouts(self) -> int:
        """Rollouts of all its chunks, ended ones included."""
        return sum(chunk.num_rollouts for chunk in self.chunks.values())


class OpenCall(NamedTuple):
    """A call to an engine that has not been answered."""

    engine: int
    on_result: Callable[[Any], None]  # also takes the exception with which it fails


class InFlight:
    """Everything that a session has under way: the engines it uses, their chunks, and every open call with what is to
    be done when it is answered."""

    def __init__(self) -> None:
        self.engines: dict[int, EngineInUse] = {}  # those that the placement knows
        self.chunks: dict[int, ChunkInFlight] = {}  # by chunk
        self._open_calls: dict[Any, OpenCall] = {}  # by reference

    def references(self) -> list[Any]:
        """Return the references of all open calls."""
        return list(self._open_calls)

    def busy_engines(self) -> frozenset[int]:
        """Return the engines that have chunks. Any thread may ask."""
        engines = list(self.engines.items())
        return frozenset(index for index, engine in engines if engine.chunks)

    def add_engine(self, index: int, actor: Any) -> None:
        """Use an engine, which has no chunks yet."""
        self.engines[index] = EngineInUse(actor)

    def drop_engine(self, index: int) -> list[ChunkInFlight]:
        """Forget an engine and its open calls; the chunks that it had."""
        for reference, call in list(self._open_calls.items()):
            if call.engine == index:
                del self._open_calls[reference]
        lost = list(self.engines.pop(index).chunks.values())
        for in_flight in lost:
            del self.chunks[in_flight.chunk]
        return lost

    def add(self, in_flight: ChunkInFlight) -> None:
        """Note that an engine was given a chunk."""
        self.chunks[in_flight.chunk] = in_flight
        self.engines[in_flight.engine].chunks[in_flight.call_id] = in_flight

    def remove(self, in_flight: ChunkInFlight) -> None:
        """Note that a chunk is no longer on its engine, whose answer is not waited for any more."""
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
        """Have `on_result(*args, result)` called with the result of a call to an engine."""
        self._open_calls[reference] = OpenCall(engine, functools.partial(on_result, *args))

    def take_result(self, reference: Any, result: Any) -> None:
        """Do what is to be done about the answer to a call. Nothing happens when its engine was dropped meanwhile."""
        call = self._open_calls.pop(reference, None)
        if call is not None:
            call.on_result(result)
