"""Rows of a step's timeline: one for each lane and depth, how busy each process was, what is kept of many spans."""

from __future__ import annotations

from pathlib import Path

import pytest
from brorl_lab.page.page import timeline, timelines

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.timeline import StepTimeline, TimelineSpan
from nemo_brorl.training.trace_files import TraceFiles

SPANS = (
    TimelineSpan("driver", "stages", "step", 0.0, 8.0),
    TimelineSpan("driver", "stages", "collect", 0.0, 5.0),
    TimelineSpan("engine 10", "chunks 1", "sample", 1.0, 2.0, ("p-1/0",)),
    TimelineSpan("engine 2", "chunks 1", "sample", 1.0, 3.0, ("p-1/64",)),
    TimelineSpan("engine 2", "chunks 2", "sample", 2.0, 4.0, ("p-1/128",)),
    TimelineSpan("driver", "stages", "wait", 3.0, 1.0),
    TimelineSpan("driver", "stages", "update", 5.0, 3.0),
    TimelineSpan("policy rank 0", "stages", "mini-batch 1 of 1", 5.5, 2.0, ("p-1/0", "p-1/64")),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    TraceFiles(tmp_path, 5).write(StepTimeline(7, 1e9, 8.0, SPANS, {}))
    return tmp_path


def test_the_driver_comes_first_and_engines_by_their_numbers(run: Path) -> None:
    assert timeline(run, 7)["rows"] == [
        ("driver", "stages", 0),
        ("driver", "stages", 1),
        ("engine 2", "chunks 1", 0),
        ("engine 2", "chunks 2", 0),
        ("engine 10", "chunks 1", 0),
        ("policy rank 0", "stages", 0),
    ]


def test_a_span_within_another_is_a_row_lower(run: Path) -> None:
    found = timeline(run, 7)
    spans = found["spans"]
    names = [found["names"][number] for number in spans["name"]]
    assert spans["row"][names.index("wait")] == 1
    assert spans["row"][names.index("update")] == 0
    assert spans["start"][names.index("update")] == 5.0


def test_spans_of_the_same_rollouts_name_the_same_chunk(run: Path) -> None:
    found = timeline(run, 7)
    learnt = found["spans"]["chunks"][-1]
    assert [found["chunks"][number] for number in learnt] == ["p-1/0", "p-1/64"]
    assert found["spans"]["chunks"][1] == learnt[:1]


def test_stages_are_what_the_step_went_into_and_processes_are_busy_where_a_span_lies(run: Path) -> None:
    """Engine 2: 1 to 4 and 2 to 6, that is 5 of 8 s."""
    found = timeline(run, 7)
    assert found["stages"] == [{"name": "collect", "seconds": 5.0}, {"name": "update", "seconds": 3.0}]
    assert found["busy"] == [
        {"process": "engine 2", "share": 0.625, "spans": 2},
        {"process": "engine 10", "share": 0.25, "spans": 1},
        {"process": "policy rank 0", "share": 0.25, "spans": 1},
    ]


def test_of_many_spans_those_of_the_driver_and_the_longest_are_kept(run: Path) -> None:
    found = timeline(run, 7, max_spans=4)
    assert [found["names"][number] for number in found["spans"]["name"]] == ["collect", "sample", "wait", "update"]
    assert (found["spans"]["seconds"][1], found["num_all"]) == (4.0, 7)


def test_steps_without_a_timeline_are_not_listed(run: Path) -> None:
    assert timelines(run) == {"steps": [7]}
    with pytest.raises(DataError, match="no timeline of step 8"):
        timeline(run, 8)
