"""Spans for OpenTelemetry: by its own SDK, into memory."""

import pytest

from nemo_brorl.config.records import TimelineConfig
from nemo_brorl.core.timeline import Span, StepTimeline
from nemo_brorl.training.trace_export import export, exporter

SPANS = (
    Span("driver", "stages", "step", 0.0, 8.0),
    Span("engine 1", "chunks 1", "sample", 0.5, 3.0, ("p/0",), {"tokens": 120}),
)


def test_a_step_is_a_trace_with_its_spans_as_children() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    export(provider.get_tracer("test"), StepTimeline(7, 1000.0, 8.0, SPANS, {}))
    child, root = memory.get_finished_spans()
    assert (root.name, root.start_time, root.end_time) == ("step", 1_000_000_000_000, 1_008_000_000_000)
    assert child.parent is not None
    assert child.parent.span_id == root.context.span_id
    assert (child.start_time, child.end_time) == (1_000_500_000_000, 1_003_500_000_000)
    assert dict(child.attributes or {}) == {
        "brorl.step": 7,
        "brorl.process": "engine 1",
        "brorl.lane": "chunks 1",
        "brorl.tokens": 120,
        "brorl.rollouts": ("p/0",),
    }


def test_nothing_is_exported_unless_asked_for() -> None:
    assert exporter(is_on=False) is None
    assert list(TimelineConfig().violations()) == []


def test_an_export_without_a_collector_is_refused_with_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    (message,) = TimelineConfig(opentelemetry=True).violations()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in message
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert list(TimelineConfig(opentelemetry=True).violations()) == []


def test_an_export_without_the_package_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (message,) = TimelineConfig(opentelemetry=True).violations()
    assert "pip install opentelemetry-sdk" in message
