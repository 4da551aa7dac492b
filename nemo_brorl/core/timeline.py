"""Timeline of a step: who did what when, on one clock.

Processes note `Work` by their own clocks and send it along with answers that travel anyway. The driver keeps all of it
in a `Timeline`, which makes `TimelineSpan`s of one step on the driver's clock; `training/trace_files.py` writes them.

Clocks are aligned as Cristian's algorithm does (1989): a question is received after it was asked, and its answer is
known after it was given, so every answer bounds the offset of the two clocks from both sides. Clocks that nothing
contradicts are taken to agree, as those of one machine do and those of a cluster should; others are moved to the middle
of the bounds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DRIVER = "driver"
# Lane of the driver: its spans lie side by side or inside each other.
STAGES = "stages"
# Lane of work that goes on side by side: its spans are spread over as many lanes as they need.
CHUNKS = "chunks"
# Lane of an engine.
WEIGHTS = "weights"
# Name of the span of the whole step, around all others of its lane.
STEP = "step"
# Name of the driver's spans in no stage.
BETWEEN = "between"
# Two times that differ by less are one: files have microseconds.
TICK_S = 2e-6
# Time of the driver in no stage that is worth a span.
SHORTEST_S = 1e-4
# Of one step; what comes beyond is counted and left out.
MAX_WORK = 200_000


@dataclass(frozen=True)
class Work:
    """A piece of work as the process that did it noted it."""

    name: str
    began_at: float  # unix seconds of its own clock, as is the next
    ended_at: float
    lane: str = STAGES
    rollouts: tuple[str, ...] = ()  # chunks that it is about, by `chunk_key`
    details: Mapping[str, Any] = field(default_factory=dict)  # JSON-able, small


@dataclass(frozen=True)
class TimelineSpan:
    """A piece of work on the driver's clock."""

    process: str  # "driver", "engine 0", "verifier 1", "policy rank 3"
    lane: str  # of the process: "stages", "chunks 2", "weights"
    name: str  # "collect", "sample", "score", "mini-batch 1 of 2"
    start_s: float  # since the step began; below 0 for what had begun before
    seconds: float
    rollouts: tuple[str, ...] = ()  # chunks that it is about: those of engine, verifier and policy have the same
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """Since the step began."""
        return self.start_s + self.seconds


@dataclass(frozen=True)
class Exchange:
    """A question and its answer, unix seconds."""

    asked_at: float  # driver's clock
    received_at: float  # the other's clock, as is the next
    answered_at: float
    known_at: float  # driver's clock


@dataclass
class ClockOffset:
    """How far a process's clock is ahead of the driver's, in seconds, by what its answers allow."""

    low: float = -math.inf
    high: float = math.inf

    def learn(self, exchange: Exchange) -> None:
        """Narrow the bounds."""
        self.low = max(self.low, exchange.answered_at - exchange.known_at)
        self.high = min(self.high, exchange.received_at - exchange.asked_at)

    @property
    def seconds(self) -> float:
        """The estimate."""
        if self.low <= 0.0 <= self.high:
            return 0.0
        return (self.low + self.high) / 2

    @property
    def error_s(self) -> float:
        """How far the estimate may be off."""
        return max(self.high - self.seconds, self.seconds - self.low)


@dataclass(frozen=True)
class StepTimeline:
    """All spans of one step."""

    step: int
    began_at: float  # unix seconds of the driver
    seconds: float
    spans: tuple[TimelineSpan, ...]  # the step itself, then by start
    clocks: Mapping[str, ClockOffset]  # by process
    num_left_out: int = 0


def chunk_key(uid: str, first_index: int) -> str:
    """Name of a chunk's rollouts in the spans of a run."""
    return f"{uid}/{first_index}"


class Timeline:
    """What the driver has noted of the step under way. One that is off notes nothing.

    timeline.begin(7)
    with timeline.stage("collect"): …                 # the driver's own lane
    timeline.record_work("engine 0", [work], exchange)       # what an answer brought along
    done = timeline.end()
    """

    def __init__(self, is_on: bool = True, now: Callable[[], float] = time.time) -> None:
        self.is_on = is_on
        self.now = now
        self._step: int | None = None
        self._began_at = 0.0
        self._work: list[tuple[str, Work]] = []
        self._clocks: dict[str, ClockOffset] = {}
        self._num_left_out = 0

    def begin(self, step: int) -> None:
        """Begin a step. What came since the one before stays: it belongs to work that was under way."""
        self._step = step
        self._began_at = self.now()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Inside, the driver is at `name`; stages nest."""
        began_at = self.now()
        try:
            yield
        finally:
            self.record_work(DRIVER, [Work(name, began_at, self.now())])

    def record_work(self, process: str, work: Iterable[Work], exchange: Exchange | None = None) -> None:
        """Work of a process, and the answer that brought it."""
        if not self.is_on:
            return
        if exchange is not None:
            self._clocks.setdefault(process, ClockOffset()).learn(exchange)
        for piece in work:
            if len(self._work) < MAX_WORK:
                self._work.append((process, piece))
            else:
                self._num_left_out += 1

    def end(self) -> StepTimeline | None:
        """Return the step that ends now; None for one that was not begun, or where the timeline is off."""
        step = self._step
        work = self._work
        clocks = self._clocks
        num_left_out = self._num_left_out
        self._step = None
        self._work = []
        self._clocks = {}
        self._num_left_out = 0
        if step is None or not self.is_on:
            return None
        ended_at = self.now()
        seconds = ended_at - self._began_at
        spans: list[TimelineSpan] = []
        for process, piece in work:
            offset = clocks[process].seconds if process in clocks else 0.0
            spans.append(_span(process, piece, self._began_at + offset))
        spans += _between(spans, seconds)
        whole = TimelineSpan(DRIVER, STAGES, STEP, 0.0, seconds)
        ordered = sorted(_in_lanes(spans), key=_order)
        return StepTimeline(
            step=step,
            began_at=self._began_at,
            seconds=seconds,
            spans=(whole, *ordered),
            clocks=clocks,
            num_left_out=num_left_out,
        )


def top_stages(spans: Sequence[TimelineSpan]) -> list[TimelineSpan]:
    """Return the driver's stages that are in no other but the step, by start: together they are the step."""
    found: list[TimelineSpan] = []
    stages = [span for span in spans if (span.process, span.lane) == (DRIVER, STAGES) and span.name != STEP]
    for stage in sorted(stages, key=_order):
        if not found or stage.start_s >= found[-1].end_s - TICK_S:
            found.append(stage)
    return found


def _span(process: str, work: Work, zero: float) -> TimelineSpan:
    return TimelineSpan(
        process=process,
        lane=work.lane,
        name=work.name,
        start_s=work.began_at - zero,
        seconds=max(work.ended_at - work.began_at, 0.0),
        rollouts=work.rollouts,
        details=work.details,
    )


def _order(span: TimelineSpan) -> tuple[float, float]:
    """Order by start, the one around another first."""
    return span.start_s, -span.seconds


def _between(spans: Sequence[TimelineSpan], seconds: float) -> Iterator[TimelineSpan]:
    """Yield the spans of the driver that fill its step where no stage was."""
    reached = 0.0
    for stage in top_stages(spans):
        if stage.start_s - reached >= SHORTEST_S:
            yield TimelineSpan(DRIVER, STAGES, BETWEEN, reached, stage.start_s - reached)
        reached = max(reached, stage.end_s)
    if seconds - reached >= SHORTEST_S:
        yield TimelineSpan(DRIVER, STAGES, BETWEEN, reached, seconds - reached)


def _in_lanes(spans: Iterable[TimelineSpan]) -> Iterator[TimelineSpan]:
    """Yield spans that go on side by side, each in the first lane of its process that is free: "chunks 1", "chunks
    2"."""
    busy_until: dict[str, list[float]] = {}  # by process and lane
    for span in sorted(spans, key=_order):
        if span.lane != CHUNKS:
            yield span
            continue
        lanes = busy_until.setdefault(span.process, [])
        number = _first_free(lanes, span.start_s)
        if number == len(lanes):
            lanes.append(0.0)
        lanes[number] = span.end_s
        yield replace(span, lane=f"{CHUNKS} {number + 1}")


def _first_free(lanes: Sequence[float], start_s: float) -> int:
    for number, busy_until in enumerate(lanes):
        if busy_until <= start_s:
            return number
    return len(lanes)
