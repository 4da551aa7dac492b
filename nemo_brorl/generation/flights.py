"""Which chunk is on which engine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


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
    """All chunks in flight, by the reference to wait for and by engine. Engines come and go: `add_engine`, `drop_engine`."""

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
