"""Which chunk is on which engine, and what it comes back as."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_brorl.generation.chunk_task import ChunkMeta, no_arrays
from nemo_brorl.types import PartialRollouts, RolloutChunk, RolloutRequest


@dataclass(frozen=True)
class Flight:
    """A chunk an engine was given."""

    number: int  # no two flights of a pool have the same
    engine: int
    chunk: int
    meta: Any  # reference to the ChunkMeta to be
    data: Any  # reference to the ChunkArrays to be
    beginnings: Any  # reference to the ChunkArrays of what will have been cut


class Flights:
    """All chunks in flight, by the reference to wait for and by engine. Engines come and go: `add_engine`,
    `drop_engine`."""

    def __init__(self) -> None:
        self.by_meta: dict[Any, Flight] = {}
        self.engines: dict[int, dict[int, Flight]] = {}  # by engine, by number

    def add(self, flight: Flight) -> None:
        """A chunk was given to an engine."""
        self.by_meta[flight.meta] = flight
        self.engines[flight.engine][flight.number] = flight

    def remove(self, flight: Flight) -> None:
        """A chunk came back."""
        del self.by_meta[flight.meta]
        del self.engines[flight.engine][flight.number]

    def add_engine(self, engine: int) -> None:
        """An engine without chunks."""
        self.engines[engine] = {}

    def drop_engine(self, engine: int) -> list[Flight]:
        """An engine is gone; returns what it had."""
        flights = list(self.engines.pop(engine).values())
        for flight in flights:
            del self.by_meta[flight.meta]
        return flights

    def of_chunks(self, chunks: Collection[int]) -> list[Flight]:
        """Those of these chunks, by engine."""
        return [flight for flights in self.engines.values() for flight in flights.values() if flight.chunk in chunks]

    def clear(self) -> None:
        """Forget everything."""
        self.by_meta.clear()
        self.engines.clear()


def landed(flight: Flight, request: RolloutRequest, meta: ChunkMeta) -> RolloutChunk:
    """The answer that an engine gave; tokens stay where they are."""
    rest = meta.unfinished
    return RolloutChunk(
        request=request,
        indices=meta.indices,
        lengths=meta.lengths,
        is_stopped=meta.is_stopped,
        version=meta.version,
        newest_version=meta.newest_version,
        engine=flight.engine,
        data=flight.data,
        unfinished=None
        if rest is None
        else PartialRollouts(rest.indices, rest.lengths, rest.version, flight.beginnings),
    )


def untouched(request: RolloutRequest, version: int) -> RolloutChunk:
    """The answer to a request that was cut before an engine had it: nothing has ended, the beginnings are those it came
    with. `version` is that of rollouts without a token."""
    nothing, num = np.zeros(0, np.int32), request.num_rollouts
    rest = request.resumed or PartialRollouts(request.indices, np.zeros(num, np.int32), version, no_arrays(num))
    return RolloutChunk(
        request, nothing, nothing, np.zeros(0, bool), version, version, engine=-1, data=no_arrays(0), unfinished=rest
    )
