"""Simulate a driver and its engines by discrete events, and measure how long a load takes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lab.studies.cluster_model.bounds import lower_bound_s, unmoved_bound_s
from lab.studies.cluster_model.engine import Chunk, EngineModel
from lab.studies.cluster_model.load import ClusterShape, Load
from nemo_brorl.generation.placement.engine_load import PrefixCache
from nemo_brorl.generation.placement.placement import Steal
from nemo_brorl.generation.progress import ReportTimes


class Dispatcher(Protocol):
    """A policy that decides which engine samples what. It sees which rollouts ended, but no length in advance."""

    def assign(self) -> tuple[int, Chunk] | None:
        """Return the next chunk of rollouts to sample and its engine, or None when no chunk should be sent now."""

    def progress(self, engine: int, number: int, num_started: int, num_ended: int, age: float) -> None:
        """Take an engine's report about a chunk: numbers of started and ended rollouts, and mean age in tokens."""

    def finish(self, engine: int, chunk: Chunk) -> None:
        """Take an engine's report that all rollouts of a chunk that was sent to the engine have ended."""

    def steals(self) -> list[Steal]:
        """Return the chunks of rollouts that engines should give back, so that other engines can sample them."""

    def withdrawn(self, number: int) -> None:
        """Take an engine's reply that it gave back a chunk of rollouts that it had not started."""

    def kept(self, number: int) -> None:
        """Take an engine's reply that it keeps a chunk of rollouts, because it had already started them."""


@dataclass(frozen=True)
class ClusterResult:
    """The time and cost of sampling a load. Shares are of engines × makespan."""

    makespan_s: float
    bound_s: float  # lower bound: work spread evenly, or the longest rollout alone
    unmoved_bound_s: float  # lower bound for schedules that never move a started rollout
    idle_share: float  # engines without any rollout
    prefill_tokens: int
    prefill_ratio: float  # prefill over computing every prompt once
    num_messages: int  # messages between driver and engines
    num_stolen: int

    @property
    def over_bound(self) -> float:
        """Time to sample all simulated rollouts, divided by the lower bound for all schedules."""
        return self.makespan_s / self.bound_s

    @property
    def over_unmoved(self) -> float:
        """Time to sample all rollouts, divided by the lower bound for schedules that move no started rollout."""
        return self.makespan_s / self.unmoved_bound_s


class Cluster:
    """The simulation of one load on one cluster under one dispatcher. Use it once."""

    def __init__(self, shape: ClusterShape, dispatcher: Dispatcher) -> None:
        self._shape = shape
        self._dispatcher = dispatcher
        self._engines = [
            EngineModel(shape.curve, shape.max_batch, PrefixCache(shape.cached_prompt_tokens))
            for _ in range(shape.num_engines)
        ]
        self._reports = [ReportTimes(shape.report_every, shape.report_s) for _ in range(shape.num_engines)]
        self._is_ticking = [False] * shape.num_engines  # engines with a pending check whether a report is due
        self._stamps = [0] * shape.num_engines  # an engine's event with an older stamp is void
        self._events: list[tuple[float, int, str, int, object]] = []  # heap of (time, order, kind, engine, content)
        self._num_events = 0
        self._now_s = 0.0
        self._num_messages = 0
        self._num_stolen = 0

    @property
    def num_sampled(self) -> int:
        """Number of simulated rollouts that have ended."""
        return sum(engine.num_ended for engine in self._engines)

    def run(self, load: Load) -> ClusterResult:
        """Simulate the sampling of all rollouts that the dispatcher assigns to engines, and return time and costs."""
        handlers = {
            "end": self._end, "arrive": self._arrive, "tick": self._tick, "ask": self._ask, "hear": self._hear,
            "answer": self._answer,
        }  # fmt: skip
        self._dispatch()
        while self._events:
            self._now_s, _, kind, engine, what = heapq.heappop(self._events)
            handlers[kind](engine, what)
        makespan = max(engine.time_s for engine in self._engines)
        busy = sum(engine.busy_s for engine in self._engines)
        prefill = sum(engine.prefill_tokens for engine in self._engines)
        return ClusterResult(
            makespan_s=makespan,
            bound_s=lower_bound_s(load, self._shape),
            unmoved_bound_s=unmoved_bound_s(load, self._shape),
            idle_share=1 - busy / (makespan * self._shape.num_engines),
            prefill_tokens=prefill,
            prefill_ratio=prefill / sum(load.prompt_tokens),
            num_messages=self._num_messages,
            num_stolen=self._num_stolen,
        )

    def _post(self, time_s: float, kind: str, engine: int, what: object) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, kind, engine, what))

    def _send(self, kind: str, engine: int, what: object) -> None:
        self._num_messages += 1
        self._post(self._now_s + self._shape.latency_s, kind, engine, what)

    def _reschedule(self, engine: int) -> None:
        self._stamps[engine] += 1
        if self._engines[engine].batch:
            self._post(self._engines[engine].next_end_s, "end", engine, self._stamps[engine])

    # ---- events at an engine ----

    def _end(self, engine: int, stamp: object) -> None:
        if stamp != self._stamps[engine]:
            return
        model, reports = self._engines[engine], self._reports[engine]
        before = model.num_ended
        done = [chunk for chunk in model.run_to_next_end() if chunk.is_done]
        reports.record_finished(model.num_ended - before)
        if done or reports.is_due(self._now_s):
            self._report(engine, done)
        self._reschedule(engine)

    def _tick(self, engine: int, _: object) -> None:
        """Send a progress report from a simulated engine that is busy and has sent none for too long."""
        model, reports = self._engines[engine], self._reports[engine]
        self._is_ticking[engine] = model.batch > 0
        if model.batch:
            if reports.is_due(self._now_s):
                model.run_until(self._now_s)
                self._report(engine, [])
            self._post(reports.due_at, "tick", engine, None)

    def _report(self, engine: int, done: Sequence[Chunk]) -> None:
        model, reports = self._engines[engine], self._reports[engine]
        others = model.begun if reports.may_report(self._now_s) else []
        self._send(
            "hear",
            engine,
            [(chunk, chunk.num_started, chunk.num_ended, model.age(chunk)) for chunk in (*done, *others)],
        )
        if others:
            reports.mark_reported(self._now_s)

    def _arrive(self, engine: int, chunk: object) -> None:
        assert isinstance(chunk, Chunk)
        model = self._engines[engine]
        was_full = model.batch == model.max_batch
        if not model.batch:
            self._reports[engine].mark_started(self._now_s)
        model.add(chunk, self._now_s)
        if not self._is_ticking[engine]:
            self._is_ticking[engine] = True
            self._post(self._reports[engine].due_at, "tick", engine, None)
        if not was_full:
            self._reschedule(engine)

    def _ask(self, engine: int, number: object) -> None:
        assert isinstance(number, int)
        chunk = self._engines[engine].withdraw(number)
        self._send("answer", engine, (number, chunk is not None))

    # ---- events at the driver ----

    def _hear(self, engine: int, news: object) -> None:
        assert isinstance(news, Iterable)
        for chunk, num_started, num_ended, age in news:
            if num_ended == len(chunk.lengths):
                self._dispatcher.finish(engine, chunk)
            else:
                self._dispatcher.progress(engine, chunk.number, num_started, num_ended, age)
        self._dispatch()

    def _answer(self, engine: int, what: object) -> None:
        assert isinstance(what, tuple)
        number, was_given = what
        if was_given:
            self._num_stolen += 1
            self._dispatcher.withdrawn(number)
        else:
            self._dispatcher.kept(number)
        self._dispatch()

    def _dispatch(self) -> None:
        while (assignment := self._dispatcher.assign()) is not None:
            engine, chunk = assignment
            self._send("arrive", engine, chunk)
        for steal in self._dispatcher.steals():
            self._send("ask", steal.victim, steal.chunk)
