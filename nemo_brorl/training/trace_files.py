"""Files of the timeline, in the trace event format of Perfetto and Chrome.

    timeline/step_000007.trace.json.gz

Spans are complete events (X), in microseconds of Unix time. A process and a lane are a pid and a tid with names (M).
The path of a chunk's rollouts is a flow from span to span (s, t, f). `otherData` has what the format has no place for:
the step, its start, and the agreement of clocks. Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import replacing
from nemo_brorl.core.timeline import DRIVER, StepTimeline, TimelineSpan

FOLDER = "timeline"  # folder in the run folder
PREFIX = "step_"
SUFFIX = ".trace.json.gz"
FORMAT = 1
MICRO = 1e6
COMPRESSION = 1  # gzip level; a trace shrinks to a tenth at the lowest one
ROLLOUTS = "rollouts"  # name and category of flows, and name of the argument with the chunk keys

Event = dict[str, Any]
Lane = tuple[str, str]  # process, lane
LaneIds = dict[Lane, tuple[int, int]]  # pid, tid

log = get_logger(__name__)


class TraceFiles:
    """The timeline files of a run folder. Only those of the newest steps are kept."""

    def __init__(
        self,
        run_folder: Path,
        keep_steps: int,
    ) -> None:
        self.folder = run_folder / FOLDER
        self.keep_steps = keep_steps

    def write(self, timeline: StepTimeline) -> None:
        """Write the timeline file of a training step, and delete those beyond the newest `keep_steps`.

        If the disk refuses, only this file is lost, with a warning.
        """
        path = self.folder / file_name(timeline.step)
        try:
            self.folder.mkdir(exist_ok=True)
            with replacing(path) as aside:
                _write(aside, timeline)
            for step in steps_in(self.folder)[: -self.keep_steps]:
                (self.folder / file_name(step)).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s was not written: %s", path, error)

    def drop_after(self, step: int | None) -> None:
        """Delete the timeline files of steps after `step`, which a resumed run repeats, or all for a new run (None)."""
        for written_step in steps_in(self.folder):
            if step is None or written_step > step:
                (self.folder / file_name(written_step)).unlink(missing_ok=True)


def micros(seconds: float) -> int:
    """Convert seconds to microseconds, the unit of trace event files."""
    return round(seconds * MICRO)


def file_name(step: int) -> str:
    """Return the name of a training step's timeline file."""
    return f"{PREFIX}{step:06d}{SUFFIX}"


def steps_in(folder: Path) -> list[int]:
    """Return the steps that have a timeline file in a folder, ascending."""
    names = [path.name for path in folder.glob(f"{PREFIX}*{SUFFIX}")]
    numbers = [name.removeprefix(PREFIX).removesuffix(SUFFIX) for name in names]
    return sorted(int(number) for number in numbers if number.isdecimal())


def trace_events(timeline: StepTimeline) -> list[Event]:
    """Convert the timeline of a training step to trace events."""
    lane_ids = _lane_ids(timeline.spans)
    events = list(_names(lane_ids))
    flows: dict[str, list[Event]] = {}  # chunk key → its spans
    zero = micros(timeline.began_at)
    for span in timeline.spans:
        start = zero + micros(span.start_s)
        end = zero + micros(span.end_s)
        pid, tid = lane_ids[span.process, span.lane]
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


def _lane_ids(spans: Sequence[TimelineSpan]) -> LaneIds:
    """Return the process id and thread id that a trace shows for every lane of a timeline.

    The driver comes first, then the other processes by name.
    """
    found = {(span.process, span.lane) for span in spans}
    numbers: LaneIds = {}
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
    """Split a process's name into words that sort numbers by value, so that engine 2 comes before engine 10."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in name.split()]


def _names(lane_ids: LaneIds) -> Iterator[Event]:
    """Yield the trace events that name and order processes and lanes."""
    for (process, lane), (pid, tid) in lane_ids.items():
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
    """Yield the trace's arrows that follow a chunk of rollouts through its timeline spans.

    They lead from the end of the first span to the start of each later one.
    """
    last = len(path) - 1
    if last == 0:
        return
    for place, span in enumerate(path):
        phase = "f" if place == last else "t"
        time = span["ts"]
        if place == 0:
            phase = "s"
            # A time inside the span and not after the next one starts, because viewers drop arrows back in time.
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
