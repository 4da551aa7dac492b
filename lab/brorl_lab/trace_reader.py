"""Read the timelines of a run: the steps that have one, and the spans of a step (`training/trace_files.py`)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from brorl_graders.base.foreign import LARGE, open_record, read_json

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import MALFORMED, why_unreadable
from nemo_brorl.core.timeline import TimelineSpan
from nemo_brorl.training.trace_files import FOLDER, MICRO, ROLLOUTS, Event, file_name, micros, steps_in

MAX_TRACE = 1 << 28  # largest timeline of a step, unpacked, in bytes


def timeline_steps(run_folder: Path) -> list[int]:
    """Return the training steps of a run that have a timeline, ascending."""
    return steps_in(run_folder / FOLDER)


def read_spans(
    run_folder: Path,
    step: int,
) -> list[TimelineSpan]:
    """Return the time spans in the timeline of a training step.

    First comes the driver's span "step", as long as the step, then all other spans by start. Raises DataError for a
    missing step or a damaged file.
    """
    path = run_folder / FOLDER / file_name(step)
    try:
        with open_record(path, LARGE) as packed, gzip.GzipFile(fileobj=packed) as file:
            trace = read_json(file.read(MAX_TRACE + 1), most_bytes=MAX_TRACE)
        zero = micros(trace["otherData"]["began_at"])
        return list(_spans(trace["traceEvents"], zero))
    except FileNotFoundError as error:
        there = ", ".join(map(str, timeline_steps(run_folder))) or "none"
        raise DataError(f"{run_folder} has no timeline of step {step}; there are: {there}") from error
    except (OSError, *MALFORMED) as error:
        raise DataError(f"{path} is damaged: {why_unreadable(error)}") from error


def _spans(
    events: Sequence[Event],
    zero: int,
) -> Iterator[TimelineSpan]:
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
        yield TimelineSpan(
            process=processes[event["pid"]],
            lane=names[event["tid"]],
            name=event["name"],
            start_s=(event["ts"] - zero) / MICRO,
            seconds=event["dur"] / MICRO,
            rollouts=tuple(details.pop(ROLLOUTS, ())),
            details=details,
        )
