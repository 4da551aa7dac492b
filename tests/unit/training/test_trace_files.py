"""Files of the timeline: the trace event format, read back, kept as a ring, whole after a kill."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from brorl_lab.trace_reader import read_spans, timeline_steps

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.timeline import ClockOffset, StepTimeline, TimelineSpan
from nemo_brorl.training.trace_files import TraceFiles, trace_events

BEGAN_AT = 1_790_000_000.25
SPANS = (
    TimelineSpan("driver", "stages", "step", 0.0, 8.0),
    TimelineSpan("driver", "stages", "collect", 0.0, 5.0),
    TimelineSpan("engine 10", "chunks 1", "sample", 0.5, 3.0, ("p-1/0",), {"tokens": 120}),
    TimelineSpan("engine 2", "chunks 1", "sample", 0.5, 2.0, ("p-1/64",)),
    TimelineSpan("verifier 0", "chunks 1", "score", 3.6, 0.25, ("p-1/0",)),
    TimelineSpan("policy rank 0", "stages", "mini-batch 1 of 2", 5.5, 1.0, ("p-1/0", "p-1/64")),
)


def step(number: int = 7) -> StepTimeline:
    clocks = {"engine 2": ClockOffset(-0.001, 0.002)}
    return StepTimeline(number, BEGAN_AT, 8.0, SPANS, clocks)


def of_phase(events: list[dict[str, Any]], *phases: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] in phases]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    TraceFiles(tmp_path, 5).write(step())
    assert read_spans(tmp_path, 7) == list(SPANS)
    assert timeline_steps(tmp_path) == [7]


def test_the_file_is_a_trace_as_the_format_asks_for_it(tmp_path: Path) -> None:
    TraceFiles(tmp_path, 5).write(step())
    trace = json.loads(gzip.decompress((tmp_path / "timeline" / "step_000007.trace.json.gz").read_bytes()))
    assert trace["otherData"]["clocks"] == {"engine 2": {"offset_s": 0.0, "error_s": 0.002}}
    events = trace["traceEvents"]
    spans = of_phase(events, "X")
    assert len(spans) == len(SPANS)
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert event["ph"] in "XMstf"
    for event in spans:
        assert isinstance(event["ts"], int)
        assert event["dur"] >= 1
    assert {event["ts"] for event in spans} >= {1_790_000_000_250_000, 1_790_000_000_750_000}


def test_every_process_and_lane_has_a_name_and_the_driver_comes_first() -> None:
    names = [event for event in trace_events(step()) if event["name"] == "process_name"]
    in_order = sorted(names, key=lambda event: event["pid"])
    assert [event["args"]["name"] for event in in_order] == [
        "driver",
        "engine 2",
        "engine 10",
        "policy rank 0",
        "verifier 0",
    ]
    lanes = {(event["pid"], event["tid"]) for event in names}
    assert lanes == {(event["pid"], event["tid"]) for event in of_phase(trace_events(step()), "X")}


def test_flows_lead_from_engine_over_verifier_to_policy_inside_their_spans() -> None:
    events = trace_events(step())
    arrows = of_phase(events, "s", "t", "f")
    by_chunk: dict[str, list[dict[str, Any]]] = {}
    for arrow in arrows:
        by_chunk.setdefault(arrow["args"]["chunk"], []).append(arrow)
    assert [arrow["ph"] for arrow in by_chunk["p-1/0"]] == ["s", "t", "f"]
    assert [arrow["ph"] for arrow in by_chunk["p-1/64"]] == ["s", "f"]
    assert len({arrow["id"] for arrow in arrows}) == 2
    for arrow in arrows:
        inside = [
            span
            for span in of_phase(events, "X")
            if span["tid"] == arrow["tid"] and span["ts"] <= arrow["ts"] < span["ts"] + span["dur"]
        ]
        assert len(inside) == 1
    times = [arrow["ts"] for arrow in by_chunk["p-1/0"]]
    assert times == sorted(times)


def test_only_the_newest_steps_are_kept(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path, keep_steps=2)
    for number in (8, 9, 10, 11):
        files.write(step(number))
    assert timeline_steps(tmp_path) == [10, 11]


def test_a_resumed_run_drops_the_steps_it_comes_to_again(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path, keep_steps=9)
    for number in (3, 4, 5):
        files.write(step(number))
    files.drop_after(4)
    assert timeline_steps(tmp_path) == [3, 4]
    files.drop_after(None)
    assert timeline_steps(tmp_path) == []


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    TraceFiles(tmp_path, 5).write(step(3))
    with pytest.raises(DataError, match="no timeline of step 4; there are: 3"):
        read_spans(tmp_path, 4)


EMPTY_TRACE = gzip.compress(b"{}", mtime=0)
WHOLE_TRACE = gzip.compress(b'{"traceEvents": [', mtime=0)


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", EMPTY_TRACE, WHOLE_TRACE[:-9]], ids=["nothing", "no gzip", "no events", "cut"]
)
def test_a_damaged_file_is_one_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "timeline").mkdir()
    (tmp_path / "timeline" / "step_000001.trace.json.gz").write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        read_spans(tmp_path, 1)


def test_a_disk_that_refuses_costs_the_file_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "timeline").write_text("no folder")
    TraceFiles(tmp_path, 5).write(step())
    assert "was not written" in caplog.text
