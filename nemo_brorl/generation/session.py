"""Sampling under way: requests out to engines, chunks back as they finish, dead engines replaced on the way."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from nemo_brorl.config.schema import GenerationConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.chunk_task import ChunkFailure, ChunkMeta, Withdrawn, check_lengths, find_mismatch
from nemo_brorl.generation.engine_handle import ENGINE_FAILURES, EngineSlot, check_weights, explain, get_all
from nemo_brorl.generation.flights import Flight, Flights, landed, untouched
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.progress_report import News
from nemo_brorl.types import RolloutChunk, RolloutRequest


class VllmSession:
    """The GenerationSession over a pool's slots.

    Life of a request: submitted ──placement──► in flight on an engine ──its meta──► polled, once. Back to the
    placement: when the engine is lost (it died, failed a step, returned garbage, or said nothing for `timeout_s` while
    it had something to do), and when it gives the chunk to an idle engine. A request that is cut is ended by its
    engine, or here when no engine has it.

    Whether an engine is usable is the slot's business; each poll looks at it, so anyone may replace engines meanwhile.
    One that lacks the published weights is left out until the next publication.

    Nothing waits but `close`. Per chunk one call to an engine; to each engine one more is always open, which it answers
    when it has got further (`generation.report_every`). Per poll one `ray.wait` over all of these, at most a batch and
    one chunk for each engine however many requests there are, and one `ray.get`.
    """

    def __init__(
        self,
        slots: Sequence[EngineSlot],
        placement: ChunkPlacement,
        config: GenerationConfig,
        numbers: Iterator[int],  # of flights
        known_versions: Collection[int],
    ) -> None:
        self.is_open = True
        self._slots = slots
        self._placement = placement
        self._config = config
        self._numbers = numbers
        self._known_versions = known_versions
        self._requests: dict[int, RolloutRequest] = {}  # that have not ended, by chunk
        self._actors: dict[int, Any] = {}  # of the engines the placement knows
        self._flights = Flights()
        self._withdrawals: dict[Any, Flight] = {}  # by the reference to the victim's answer
        self._asked: dict[Any, int] = {}  # engines by the reference to their news; every engine in `_actors` has one
        self._last_news: dict[int, News] = {}  # by engine
        self._cut: set[int] = set()  # chunks that have not ended
        self._num_losses: Counter[int] = Counter()  # engines, by chunk
        self._restarted: set[int] = set()  # chunks whose beginnings are gone
        self._ended: list[RolloutChunk] = []  # for the next poll
        self._resolved: Any = None  # a reference that has

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Queue more. Raises ConfigError for a request that does not fit `generation.max_model_len`; none is queued
        then."""
        check_lengths(requests, self._config.max_model_len)
        self._requests.update(zip(self._placement.submit(requests), requests, strict=True))
        self._admit()
        self._dispatch()

    def cut(self, uids: Collection[str]) -> None:
        """End all unfinished requests of these prompts; they come through `poll`."""
        wanted = set(uids)
        chunks = {chunk for chunk, request in self._requests.items() if request.prompt.uid in wanted} - self._cut
        self._cut |= chunks
        numbers: dict[int, list[int]] = {}
        for flight in self._flights.of_chunks(chunks):
            numbers.setdefault(flight.engine, []).append(flight.number)
        for engine, flights in numbers.items():
            self._actors[engine].cut.remote(flights)
        self._end_waiting()

    def poll(self) -> list[RolloutChunk]:
        """What has finished. Raises GenerationError when an engine, or a chunk, fails too often."""
        self._forget_replaced()
        self._hear()
        self._replace_silent()
        if self._requests:
            check_weights(self._slots)
        self._admit()
        self._end_waiting()
        self._dispatch()
        self._steal()
        ended, self._ended = self._ended, []
        return ended

    def pending(self) -> list[Any]:
        """References, one of which resolves when `poll` may have news. Silent engines are only found by polling now and
        then."""
        if not self._ended:
            return self._references()
        if self._resolved is None:
            self._resolved = ray.put(None)
        return [self._resolved]

    def busy_engines(self) -> frozenset[int]:
        """Engines that have chunks."""
        return frozenset(engine for engine, flights in list(self._flights.engines.items()) if flights)

    def close(self) -> None:
        """Drop what is unfinished and wait until the engines are idle. Engines that do not answer are replaced."""
        busy = {engine: flights for engine, flights in self._flights.engines.items() if flights}
        replies = {engine: self._actors[engine].abort.remote(list(flights)) for engine, flights in busy.items()}
        for engine, flights in busy.items():
            try:
                ray.get(
                    [replies[engine], *(flight.meta for flight in flights.values())], timeout=self._config.timeout_s
                )
            except ENGINE_FAILURES as cause:
                if self._slots[engine].actor is self._actors[engine]:
                    self._slots[engine].replace(cause)
        self.is_open = False
        for record in (
            self._actors,
            self._flights,
            self._withdrawals,
            self._asked,
            self._requests,
            self._cut,
            self._ended,
        ):
            record.clear()

    def _references(self) -> list[Any]:
        starting = [slot.starting for slot in self._slots if slot.starting is not None]
        return [*self._flights.by_meta, *self._withdrawals, *self._asked, *starting]

    def _hear(self) -> None:
        """Take in what has resolved."""
        references = self._references()
        if not references:
            return
        resolved, _ = ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)
        for reference, result in zip(resolved, get_all(resolved, self._config.timeout_s), strict=True):
            if reference in self._flights.by_meta:
                self._land(self._flights.by_meta[reference], result)
            elif reference in self._withdrawals:
                self._note_withdrawal(self._withdrawals.pop(reference), result)
            elif reference in self._asked:
                self._note_news(self._asked.pop(reference), result)
            else:  # an engine that was starting, or something of one that was lost a moment ago
                self._note_start(reference, result)

    def _land(self, flight: Flight, result: Any) -> None:
        request = self._requests[flight.chunk]
        if isinstance(result, Withdrawn):
            self._take_back(flight)
        elif (
            isinstance(result, ObjectLostError) and request.resumed is not None and flight.chunk not in self._restarted
        ):
            self._restarted.add(flight.chunk)  # the node that held the beginnings is gone: sample them again
            self._flights.remove(flight)
            self._launch(flight.engine, flight.chunk)
        elif not isinstance(result, ChunkMeta):
            self._lose(flight.engine, result)
        elif (reason := find_mismatch(result, flight.number, request, self._known_versions)) is not None:
            self._lose(flight.engine, ChunkFailure(reason, is_garbage=True))
        else:
            self._finish(flight, result)

    def _finish(self, flight: Flight, meta: ChunkMeta) -> None:
        self._flights.remove(flight)
        self._placement.finish(flight.engine, flight.chunk, meta.lengths)
        self._note_progress(flight.engine, meta.progress)
        self._slots[flight.engine].note_chunk()
        self._cut.discard(flight.chunk)
        self._ended.append(landed(flight, self._requests.pop(flight.chunk), meta))

    def _take_back(self, flight: Flight) -> None:
        """Its engine gave a chunk back; the placement is told when the answer to our question comes."""
        if all(asked is not flight for asked in self._withdrawals.values()):
            self._lose(
                flight.engine, ChunkFailure(f"engine {flight.engine} gave a chunk back unasked", is_garbage=True)
            )

    def _note_withdrawal(self, flight: Flight, result: Any) -> None:
        if result is True:
            self._flights.remove(flight)
            self._placement.withdrawn(flight.chunk)
        elif result is False:
            self._placement.kept(flight.chunk)

    def _note_news(self, engine: int, news: Any) -> None:
        """An engine told how far it is, or cannot any more."""
        if isinstance(news, Exception):
            self._lose(engine, news)
            return
        if news != self._last_news.get(engine):
            self._slots[engine].touch()
        self._last_news[engine] = news
        self._note_progress(engine, news)
        self._ask(engine)

    def _note_progress(self, engine: int, news: News) -> None:
        flights = self._flights.engines[engine]
        for chunk in [chunk for chunk in news if chunk.flight in flights]:
            self._placement.progress(engine, flights[chunk.flight].chunk, chunk.num_begun, chunk.num_ended, chunk.age)

    def _ask(self, engine: int) -> None:
        """Have an engine tell when it has got further."""
        self._asked[self._actors[engine].news.remote(self._config.report_every, self._config.report_s)] = engine

    def _note_start(self, reference: Any, result: Any) -> None:
        for slot in self._slots:
            if slot.starting is not reference:
                continue
            if isinstance(result, Exception):
                slot.replace(result)
            else:
                slot.note_ready(result)

    def _forget_replaced(self) -> None:
        """Somebody else may have found an engine dead."""
        for engine, actor in list(self._actors.items()):
            if self._slots[engine].actor is not actor:
                self._drop(engine, "it was replaced")

    def _replace_silent(self) -> None:
        cause = TimeoutError(f"no answer within generation.timeout_s={self._config.timeout_s:g}")
        for slot in self._slots:
            if slot.silence_s < self._config.timeout_s:
                continue
            if slot.starting is not None:
                slot.replace(cause)
            elif self._flights.engines.get(slot.index):
                self._lose(slot.index, cause)

    def _lose(self, engine: int, cause: object) -> None:
        self._slots[engine].replace(cause)
        self._drop(engine, explain(cause))

    def _drop(self, engine: int, reason: str) -> None:
        """An engine is gone: what it had waits again."""
        del self._actors[engine]
        self._placement.lose(engine)
        self._withdrawals = {
            reference: flight for reference, flight in self._withdrawals.items() if flight.engine != engine
        }
        self._asked = {reference: asked for reference, asked in self._asked.items() if asked != engine}
        for flight in self._flights.drop_engine(engine):
            request = self._requests[flight.chunk]
            self._slots[engine].num_resampled += request.num_rollouts
            self._num_losses[flight.chunk] += 1
            if self._num_losses[flight.chunk] > self._config.max_restarts:
                raise GenerationError(
                    f"prompt {request.prompt.uid}, rollouts from {request.first_index}, was lost with "
                    f"{self._num_losses[flight.chunk]} "
                    f"engines, generation.max_restarts={self._config.max_restarts}; last: {reason}"
                )

    def _admit(self) -> None:
        for slot in self._slots:
            if slot.starting is None and slot.index not in self._actors and not slot.lacks_weights:
                self._actors[slot.index] = slot.actor
                self._flights.add_engine(slot.index)
                self._placement.add_engine(slot.index)
                self._ask(slot.index)

    def _dispatch(self) -> None:
        while (assignment := self._placement.assign()) is not None:
            self._launch(*assignment)

    def _launch(self, engine: int, chunk: int) -> None:
        request, beginnings = self._requests[chunk], None
        if request.resumed is not None:
            beginnings = (
                None if chunk in self._restarted else request.resumed.data
            )  # by itself: then Ray brings it along
            request = dataclasses.replace(request, resumed=dataclasses.replace(request.resumed, data=None))
        if not self._flights.engines[engine]:
            self._slots[engine].touch()
        number = next(self._numbers)
        references = self._actors[engine].generate.remote(number, request, beginnings)
        self._flights.add(Flight(number, engine, chunk, *references))

    def _end_waiting(self) -> None:
        """End the chunks that were cut and are on no engine."""
        waiting = self._cut - {flight.chunk for flight in self._flights.by_meta.values()} if self._cut else set()
        for chunk in sorted(waiting):
            is_held = not self._placement.cancel(chunk)
            assert not is_held, f"chunk {chunk} is held by an engine that does not have it"
            self._cut.remove(chunk)
            self._ended.append(untouched(self._requests.pop(chunk), self._slots[0].version))

    def _steal(self) -> None:
        steals = self._placement.steals()
        flights = (
            {flight.chunk: flight for flight in self._flights.of_chunks({steal.chunk for steal in steals})}
            if steals
            else {}
        )
        for steal in steals:
            if steal.chunk in self._cut or self._has_begun(flights[steal.chunk]):
                self._placement.kept(steal.chunk)
            else:
                withdrawal = self._actors[steal.victim].withdraw.remote(flights[steal.chunk].number)
                self._withdrawals[withdrawal] = flights[steal.chunk]

    def _has_begun(self, flight: Flight) -> bool:
        """Whether the engine has room for it in its batch: then it is at it, or about to be."""
        others = [
            self._requests[other.chunk].num_rollouts
            for other in self._flights.engines[flight.engine].values()
            if other is not flight
        ]
        return sum(others) < self._config.max_num_seqs
