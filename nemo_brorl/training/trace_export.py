"""Spans of the loop's steps for OpenTelemetry, where that is asked for.

There is one trace a step, its root the step, every other span a child of it. Where they go is OpenTelemetry's own
matter: to the tracer provider that is set up already, or by its OTLP exporter to the collector that its environment
variables name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_brorl.core.timeline import STEP, Span, StepTimeline

SERVICE = "nemo_brorl"
NANO = 1e9


def exporter(is_on: bool) -> Callable[[StepTimeline], None] | None:
    """What exports a step; None where it is not asked for. OpenTelemetry is installed and configured then, see
    `TimelineConfig.violations`."""
    if not is_on:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    # A proxy: nobody has set up a provider of their own.
    if isinstance(provider, trace.ProxyTracerProvider):
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
