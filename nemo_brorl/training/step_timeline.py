"""Timeline of the loop's steps: from the first span of a step to its file, with the rollouts that each mini-batch
learns from; and its spans for OpenTelemetry, where that is asked for.

Of those there is one trace a step, its root the step, every other span a child of it. Where they go is OpenTelemetry's
own matter: to the tracer provider that is set up already, or by its OTLP exporter to the collector that its environment
variables name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_brorl.config.schema import TimelineConfig
from nemo_brorl.core.timeline import STEP, Span, StepTimeline, Timeline, chunk_key
from nemo_brorl.core.trace_file import TraceFiles
from nemo_brorl.types import MicroBatch, TrainBatch, UpdatePlan

Part = tuple[int, int]  # mini-batch, data-parallel rank
SERVICE = "nemo_brorl"
NANO = 1e9


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
