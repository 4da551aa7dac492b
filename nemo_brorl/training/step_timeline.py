"""Timeline of the loop's steps: from the first span of a step to its file, with the rollouts that each mini-batch
learns from; and its spans for OpenTelemetry, where that is asked for.

Of those there is one trace a step, its root the step, every other span a child of it. Where they go is OpenTelemetry's
own matter: to the tracer provider that is set up already, or by its OTLP exporter to the collector that its environment
variables name.

Files have the trace event format that Perfetto and Chrome open:

    timeline/step_000007.trace.json.gz

Spans are complete events (X), in microseconds of Unix time; a process and a lane are a pid and a tid with names of
their own (M). What became of a chunk's rollouts is a flow from span to span (s, t, f). `otherData` has what the format
has no place for: the step, when it began, how well clocks agree. Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_brorl.config.records import TimelineConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import replacing
from nemo_brorl.core.timeline import DRIVER, STEP, Span, StepTimeline, Timeline, chunk_key
from nemo_brorl.types import MicroBatch, TrainBatch, UpdatePlan

FOLDER = "timeline"  # in the run folder
PREFIX = "step_"
SUFFIX = ".trace.json.gz"
FORMAT = 1
MICRO = 1e6
COMPRESSION = 1  # a trace shrinks to a tenth at the least effort
ROLLOUTS = "rollouts"  # name and category of flows; also the argument that holds the keys

log = get_logger(__name__)

Event = dict[str, Any]
Lane = tuple[str, str]  # process, lane
Places = dict[Lane, tuple[int, int]]  # pid, tid

Part = tuple[int, int]  # mini-batch, data-parallel rank
SERVICE = "nemo_brorl"
NANO = 1e9


class TraceFiles:
    """The ring of a run folder's traces."""

    def __init__(
        self,
        run_folder: Path,
        keep_steps: int,
    ) -> None:
        self.folder = run_folder / FOLDER
        self.keep_steps = keep_steps

    def write(self, timeline: StepTimeline) -> None:
        """Write a step and delete those beyond the newest `keep_steps`. A disk that refuses costs the file, not the
        run."""
        path = self.folder / _name(timeline.step)
        try:
            self.folder.mkdir(exist_ok=True)
            with replacing(path) as aside:
                _write(aside, timeline)
            for step in _steps(self.folder)[: -self.keep_steps]:
                (self.folder / _name(step)).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s was not written: %s", path, error)

    def drop_after(self, step: int | None) -> None:
        """Remove later steps, which a resumed run comes to again; all of them for a run that starts anew (None)."""
        for found in _steps(self.folder):
            if step is None or found > step:
                (self.folder / _name(found)).unlink(missing_ok=True)


def timeline_steps(run_folder: Path) -> list[int]:
    """Steps whose timeline is there, ascending."""
    return _steps(run_folder / FOLDER)


def read_spans(
    run_folder: Path,
    step: int,
) -> list[Span]:
    """Spans of a step: the first is the driver's "step", as long as the step was, the others are by start. Raises
    DataError for a step that is not there, or a damaged file."""
    path = run_folder / FOLDER / _name(step)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        zero = _micros(trace["otherData"]["began_at"])
        return list(_spans(trace["traceEvents"], zero))
    except FileNotFoundError as error:
        there = ", ".join(map(str, timeline_steps(run_folder))) or "none"
        raise DataError(f"{run_folder} has no timeline of step {step}; there are: {there}") from error
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


def trace_events(timeline: StepTimeline) -> list[Event]:
    """A step as trace events."""
    places = _places(timeline.spans)
    events = list(_names(places))
    flows: dict[str, list[Event]] = {}  # spans by chunk
    zero = _micros(timeline.began_at)
    for span in timeline.spans:
        start = zero + _micros(span.start_s)
        end = zero + _micros(span.end_s)
        pid, tid = places[span.process, span.lane]
        args = dict(span.details)
        if span.rollouts:
            args[ROLLOUTS] = list(span.rollouts)
        event = {
            "ph": "X",
            "name": span.name,
            "cat": span.lane,
            "pid": pid,
            "tid": tid,
            "ts": start,
            "dur": max(end - start, 1),
            "args": args,
        }
        events.append(event)
        for key in span.rollouts:
            flows.setdefault(key, []).append(event)
    for number, (key, path) in enumerate(flows.items(), start=1):
        events += _flow(number, key, path)
    return events


def _write(
    path: Path,
    timeline: StepTimeline,
) -> None:
    clocks = {}
    for process, clock in timeline.clocks.items():
        clocks[process] = {"offset_s": clock.seconds, "error_s": clock.error_s}
    trace = {
        "traceEvents": trace_events(timeline),
        "displayTimeUnit": "ms",
        "otherData": {
            "format": FORMAT,
            "step": timeline.step,
            "began_at": timeline.began_at,
            "seconds": timeline.seconds,
            "clocks": clocks,
            "num_left_out": timeline.num_left_out,
        },
    }
    text = json.dumps(trace, separators=(",", ":"))
    with gzip.open(path, "wb", compresslevel=COMPRESSION) as file:
        file.write(text.encode())


def _places(spans: Sequence[Span]) -> Places:
    """(pid, tid) of every lane: the driver first, then processes by name."""
    found = {(span.process, span.lane) for span in spans}
    numbers: Places = {}
    processes: list[str] = []
    for process, lane in sorted(found, key=_lane_order):
        if process not in processes:
            processes.append(process)
        numbers[process, lane] = (len(processes), len(numbers) + 1)
    return numbers


def _lane_order(lane: Lane) -> tuple[bool, list[tuple[int, str]], list[tuple[int, str]]]:
    process, name = lane
    return process != DRIVER, _words(process), _words(name)


def _words(name: str) -> list[tuple[int, str]]:
    """Words to sort by: engine 2 before engine 10."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in name.split()]


def _names(places: Places) -> Iterator[Event]:
    """Names and order of processes and lanes."""
    for (process, lane), (pid, tid) in places.items():
        yield _named("process_name", pid, tid, {"name": process})
        yield _named("process_sort_index", pid, tid, {"sort_index": pid})
        yield _named("thread_name", pid, tid, {"name": lane})
        yield _named("thread_sort_index", pid, tid, {"sort_index": tid})


def _named(
    name: str,
    pid: int,
    tid: int,
    args: dict[str, Any],
) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _flow(
    number: int,
    chunk: str,
    path: Sequence[Event],
) -> Iterator[Event]:
    """Arrows along a chunk's spans, in their order: from the end of the first to the beginnings of the others."""
    last = len(path) - 1
    if last == 0:
        return
    for place, span in enumerate(path):
        phase = "f" if place == last else "t"
        time = span["ts"]
        if place == 0:
            phase = "s"
            time = min(time + span["dur"] - 1, path[1]["ts"])
        yield {
            "ph": phase,
            "name": ROLLOUTS,
            "cat": ROLLOUTS,
            "id": number,
            "pid": span["pid"],
            "tid": span["tid"],
            "ts": time,
            "bp": "e",
            "args": {"chunk": chunk},
        }


def _spans(
    events: Sequence[Event],
    zero: int,
) -> Iterator[Span]:
    processes: dict[int, str] = {}
    names: dict[int, str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
    for event in events:
        if event["ph"] != "X":
            continue
        details = dict(event["args"])
        yield Span(
            process=processes[event["pid"]],
            lane=names[event["tid"]],
            name=event["name"],
            start_s=(event["ts"] - zero) / MICRO,
            seconds=event["dur"] / MICRO,
            rollouts=tuple(details.pop(ROLLOUTS, ())),
            details=details,
        )


def _micros(seconds: float) -> int:
    return round(seconds * MICRO)


def _name(step: int) -> str:
    return f"{PREFIX}{step:06d}{SUFFIX}"


def _steps(folder: Path) -> list[int]:
    steps: list[int] = []
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        number = path.name.removeprefix(PREFIX).removesuffix(SUFFIX)
        if number.isdigit():
            steps.append(int(number))
    return sorted(steps)


class StepTimelines:
    """Writes the timeline of every step."""

    def __init__(
        self,
        timeline: Timeline,
        run_folder: Path,
        settings: TimelineConfig,
    ) -> None:
        self.timeline = timeline
        self.files = TraceFiles(run_folder, settings.keep_steps)
        self.export = exporter(settings.opentelemetry)
        self.learnt_from: Mapping[Part, tuple[str, ...]] = {}

    def begin(self, step: int) -> None:
        """A step begins."""
        self.learnt_from = {}
        self.timeline.begin(step)

    def learns(
        self,
        plan: UpdatePlan,
        batch: TrainBatch,
    ) -> None:
        """The step learns from this batch, laid out like that."""
        if self.timeline.is_on:
            self.learnt_from = chunks_by_part(plan, batch)

    def end(self) -> None:
        """The step ends: its file is written."""
        done = self.timeline.end()
        if done is None:
            return
        done = replace(done, spans=with_rollouts(done.spans, self.learnt_from))
        self.files.write(done)
        if self.export is not None:
            self.export(done)


def chunks_by_part(
    plan: UpdatePlan,
    batch: TrainBatch,
) -> dict[Part, tuple[str, ...]]:
    """Chunks of which a data-parallel rank learns in a mini-batch, each where its first rollout is learnt from."""
    keys: list[list[str]] = []  # by group, of every rollout
    for scored in batch.groups:
        of_group: list[str] = []
        for chunk in scored.group.chunks:
            key = chunk_key(scored.prompt.uid, int(chunk.request.indices[0]))
            of_group += [key] * len(chunk.lengths)
        keys.append(of_group)
    found: dict[Part, tuple[str, ...]] = {}
    seen: set[str] = set()
    for mini_batch, ranks in enumerate(plan.mini_batches):
        for data_rank, micro_batches in enumerate(ranks):
            chunks = dict.fromkeys(_chunks_of(micro_batches, keys))
            found[mini_batch, data_rank] = tuple(key for key in chunks if key not in seen)
            seen.update(chunks)
    return found


def _chunks_of(
    micro_batches: Sequence[MicroBatch],
    keys: Sequence[Sequence[str]],
) -> Iterator[str]:
    """Chunk of every rollout in micro-batches."""
    for micro_batch in micro_batches:
        for segment in micro_batch.segments:
            of_group = keys[segment.group]
            for rollout in segment.rollouts:
                yield of_group[rollout]


def with_rollouts(
    spans: tuple[Span, ...],
    learnt_from: Mapping[Part, tuple[str, ...]],
) -> tuple[Span, ...]:
    """Spans of mini-batches with their chunks; of ranks that share a data-parallel rank, on the first one."""
    left: dict[Any, tuple[str, ...]] = dict(learnt_from)
    filled: list[Span] = []
    for span in spans:
        details = span.details
        part = (details.get("mini_batch"), details.get("data_rank"))
        keys = left.pop(part, ())
        filled.append(replace(span, rollouts=keys) if keys else span)
    return tuple(filled)


def exporter(is_on: bool) -> Callable[[StepTimeline], None] | None:
    """What exports a step; None where it is not asked for. OpenTelemetry is installed and configured then, see
    `TimelineConfig.violations`."""
    if not is_on:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):  # nobody has set up another
        provider = _otlp_provider()
    tracer = provider.get_tracer(SERVICE)
    return lambda timeline: export(tracer, timeline)


def export(
    tracer: Any,
    timeline: StepTimeline,
) -> None:
    """Hand a step to a tracer."""
    from opentelemetry import trace

    root = tracer.start_span(STEP, start_time=_nanoseconds(timeline, 0.0), attributes={"brorl.step": timeline.step})
    within = trace.set_span_in_context(root)
    for span in timeline.spans:
        if span.name == STEP:
            continue
        start = _nanoseconds(timeline, span.start_s)
        child = tracer.start_span(span.name, within, start_time=start, attributes=_attributes(timeline.step, span))
        child.end(_nanoseconds(timeline, span.end_s))
    root.end(_nanoseconds(timeline, timeline.seconds))


def _attributes(
    step: int,
    span: Span,
) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "brorl.step": step,
        "brorl.process": span.process,
        "brorl.lane": span.lane,
    }
    for name, value in span.details.items():
        attributes[f"brorl.{name}"] = value
    if span.rollouts:
        attributes["brorl.rollouts"] = list(span.rollouts)
    return attributes


def _nanoseconds(
    timeline: StepTimeline,
    seconds: float,
) -> int:
    return round((timeline.began_at + seconds) * NANO)


def _otlp_provider() -> Any:
    """Provider that sends batches from a thread of its own, and what is left when the process ends."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
