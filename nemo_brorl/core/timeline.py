"""Record a step's timeline: which process did what at which time, on one clock.

Processes record `Work` by their own clocks and send it along with replies that are sent anyway. The driver collects it
in a `Timeline`, which turns it into `TimelineSpan`s of one step on the driver's clock. `training/trace_files.py` writes
them.

Clocks are aligned by Cristian's algorithm (1989). A request is received after it was sent, and its reply arrives after
it was sent, so every reply bounds the offset of the two clocks from both sides. A clock whose bounds allow offset 0 is
taken to agree with the driver's, as clocks of one machine do and those of a cluster should. Other clocks are shifted by
the middle of their bounds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DRIVER = "driver"
# Lane (track) of the driver, whose spans follow each other or are nested.
STAGES = "stages"
# Lane of concurrent work, whose spans are spread over as many lanes as they need.
CHUNKS = "chunks"
# Lane of weight syncs in an engine.
WEIGHTS = "weights"
# Name of the span of the whole step, around all other spans of its lane.
STEP = "step"
# Name of the driver's spans between stages.
BETWEEN = "between"
# Seconds below which two times count as equal, because files have microseconds.
TICK_S = 2e-6
# Shortest time between stages, in seconds, that gets a span.
SHORTEST_S = 1e-4
# Most pieces of work in one step. Further pieces are counted and left out.
MAX_WORK = 200_000


@dataclass(frozen=True)
class Work:
    """A piece of work, such as a sampled chunk, as recorded by the process that did it."""

    name: str
    began_at: float  # start, in unix seconds of the process's own clock
    ended_at: float  # end, in unix seconds of the process's own clock
    lane: str = STAGES
    rollouts: tuple[str, ...] = ()  # keys of the chunks concerned, from `chunk_key`
    details: Mapping[str, Any] = field(default_factory=dict)  # small JSON-able data


@dataclass(frozen=True)
class TimelineSpan:
    """A piece of work, such as a sampled chunk, with its times on the driver's clock."""

    process: str  # "driver", "engine 0", "verifier 1", "policy rank 3"
    lane: str  # track of the process: "stages", "chunks 2", "weights"
    name: str  # "collect", "sample", "score", "mini-batch 1 of 2"
    start_s: float  # seconds since the step started; below 0 for work that started before
    seconds: float
    rollouts: tuple[str, ...] = ()  # keys of the chunks concerned; engine, verifier and policy use the same keys
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """End of the timeline span, in seconds since the training step started."""
        return self.start_s + self.seconds


@dataclass(frozen=True)
class Exchange:
    """Times of a request to another process and its reply, in unix seconds."""

    asked_at: float  # sending of the request, driver's clock
    received_at: float  # arrival of the request, other process's clock
    answered_at: float  # sending of the reply, other process's clock
    known_at: float  # arrival of the reply, driver's clock


@dataclass
class ClockOffset:
    """Seconds by which a process's clock is ahead of the driver's, with the bounds that its replies give."""

    low: float = -math.inf
    high: float = math.inf

    def add_exchange(self, exchange: Exchange) -> None:
        """Narrow the bounds of a process's clock offset by one exchange of request and reply."""
        self.low = max(self.low, exchange.answered_at - exchange.known_at)
        self.high = min(self.high, exchange.received_at - exchange.asked_at)

    @property
    def seconds(self) -> float:
        """Estimated clock offset in seconds: 0 if the bounds allow it, else their middle."""
        if self.low <= 0.0 <= self.high:
            return 0.0
        return (self.low + self.high) / 2

    @property
    def error_s(self) -> float:
        """Largest error of the estimated clock offset, in seconds."""
        return max(self.high - self.seconds, self.seconds - self.low)


@dataclass(frozen=True)
class StepTimeline:
    """All timeline spans of one step."""

    step: int
    began_at: float  # start, in unix seconds of the driver
    seconds: float
    spans: tuple[TimelineSpan, ...]  # the span of the step itself, then the rest by start
    clocks: Mapping[str, ClockOffset]  # clock offsets by process
    num_left_out: int = 0


def chunk_key(uid: str, first_index: int) -> str:
    """Return the key that names a chunk of rollouts of one prompt in the timeline spans of all processes."""
    return f"{uid}/{first_index}"


class Timeline:
    """The work that the driver has recorded in the current step. A timeline that is off records nothing.

    timeline.begin(7)
    with timeline.stage("collect"): …                 # the driver's own lane
    timeline.record_work("engine 0", [work], exchange)       # work that a reply brought along
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
        """Start the timeline of a training step.

        Work recorded since the last step stays, because it was in progress.
        """
        self._step = step
        self._began_at = self.now()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the time inside the context as the driver's stage `name`; stages can be nested."""
        began_at = self.now()
        try:
            yield
        finally:
            self.record_work(DRIVER, [Work(name, began_at, self.now())])

    def record_work(self, process: str, work: Iterable[Work], exchange: Exchange | None = None) -> None:
        """Record the work of a process in the timeline of the training step.

        `exchange` has the times of the request and reply that brought the record to the driver.
        """
        if not self.is_on:
            return
        if exchange is not None:
            self._clocks.setdefault(process, ClockOffset()).add_exchange(exchange)
        for piece in work:
            if len(self._work) < MAX_WORK:
                self._work.append((process, piece))
            else:
                self._num_left_out += 1

    def end(self) -> StepTimeline | None:
        """End the current step and return its timeline; None if no step was started or the timeline is off."""
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
    """Return the outermost stages of the driver in a training step's timeline, ordered by start.

    Together they make up the step.
    """
    outermost: list[TimelineSpan] = []
    stages = [span for span in spans if (span.process, span.lane) == (DRIVER, STAGES) and span.name != STEP]
    for stage in sorted(stages, key=_order):
        if not outermost or stage.start_s >= outermost[-1].end_s - TICK_S:
            outermost.append(stage)
    return outermost


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
    """Return the sort key of a timeline span: by start, and an enclosing span first."""
    return span.start_s, -span.seconds


def _between(spans: Sequence[TimelineSpan], seconds: float) -> Iterator[TimelineSpan]:
    """Yield timeline spans for the driver's time between two stages of a training step."""
    reached = 0.0
    for stage in top_stages(spans):
        if stage.start_s - reached >= SHORTEST_S:
            yield TimelineSpan(DRIVER, STAGES, BETWEEN, reached, stage.start_s - reached)
        reached = max(reached, stage.end_s)
    if seconds - reached >= SHORTEST_S:
        yield TimelineSpan(DRIVER, STAGES, BETWEEN, reached, seconds - reached)


def _in_lanes(spans: Iterable[TimelineSpan]) -> Iterator[TimelineSpan]:
    """Yield timeline spans, where concurrent chunks of rollouts are moved to the first free lane of their process.

    Such lanes are called "chunks 1", "chunks 2" and so on.
    """
    busy_until: dict[str, list[float]] = {}  # ends of the lanes' last spans, by process
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
