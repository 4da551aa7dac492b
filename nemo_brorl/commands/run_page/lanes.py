"""The timeline of a step as rows to draw: who did what when, and how busy each was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from nemo_brorl.core.timeline import DRIVER, Span, top_stages
from nemo_brorl.core.trace_file import read_spans, timeline_steps

MAX_SPANS = 4_000  # of a step; the driver's and the longest
WORDS = re.compile(r"(\d+)|(\D+)")
MAX_ROLLOUTS = 8  # chunks that a span names

Part = dict[str, Any]
Row = tuple[str, str, int]  # process, lane, how many spans of the lane lie around it


def timelines(folder: Path) -> Part:
    """Steps that have a timeline."""
    return {"steps": timeline_steps(folder)}


def timeline(folder: Path, step: int, max_spans: int = MAX_SPANS) -> Part:
    """Rows and spans of a step but that of the step itself, seconds since it began; names and chunks are numbers into
    lists. Raises DataError when it is not there."""
    spans = read_spans(folder, step)
    kept = _longest(spans[1:], max_spans)
    places = _rows_of(kept)
    rows = sorted(set(places), key=_row_order)
    names = _Numbers()
    chunks = _Numbers()
    columns: Part = {
        "row": [],
        "start": [],
        "seconds": [],
        "name": [],
        "chunks": [],
    }
    for row, span in zip(places, kept, strict=True):
        place = rows.index(row)
        start = round(span.start_s, 5)
        seconds = round(span.seconds, 5)
        about = span.rollouts[:MAX_ROLLOUTS]
        columns["row"].append(place)
        columns["start"].append(start)
        columns["seconds"].append(seconds)
        columns["name"].append(names[span.name])
        columns["chunks"].append([chunks[chunk] for chunk in about])
    whole = spans[0].seconds
    return {
        "step": step,
        "seconds": whole,
        "rows": rows,
        "names": list(names),
        "chunks": list(chunks),
        "spans": columns,
        "stages": _stages(spans),
        "busy": _busy(spans, whole),
        "num_all": len(spans) - 1,
    }


class _Numbers(dict[str, int]):
    """Names with their numbers, in the order in which they were first asked for."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def _longest(spans: Sequence[Span], num: int) -> list[Span]:
    """By start: all of the driver's, and the longest of the others."""
    if len(spans) <= num:
        return list(spans)
    others = [span for span in spans if span.process != DRIVER]
    others.sort(key=attrgetter("seconds"), reverse=True)
    num_driver = len(spans) - len(others)
    too_short = {id(span) for span in others[max(0, num - num_driver) :]}
    return [span for span in spans if id(span) not in too_short]


def _rows_of(spans: Iterable[Span]) -> list[Row]:
    """The row of each span. Spans come by start, one around others before them."""
    open_spans: dict[tuple[str, str], list[Span]] = {}
    rows: list[Row] = []
    for span in spans:
        lane = (span.process, span.lane)
        around = open_spans.setdefault(lane, [])
        while around and around[-1].end_s <= span.start_s:
            around.pop()
        rows.append((*lane, len(around)))
        around.append(span)
    return rows


def _row_order(row: Row) -> tuple[Any, ...]:
    process, lane, depth = row
    return process != DRIVER, _words(process), _words(lane), depth


def _words(name: str) -> list[tuple[int, str]]:
    """Letters, and numbers by their value."""
    found: list[tuple[int, str]] = []
    for digits, letters in WORDS.findall(name):
        number = int(digits or 0)
        found.append((number, letters))
    return found


def _stages(spans: Sequence[Span]) -> list[Part]:
    """What the step's time went into, longest first; stages of one name together."""
    seconds: dict[str, float] = {}
    for span in top_stages(spans):
        before = seconds.get(span.name, 0.0)
        seconds[span.name] = before + span.seconds
    stages: list[Part] = []
    for name, total in seconds.items():
        stage = {
            "name": name,
            "seconds": round(total, 5),
        }
        stages.append(stage)
    return sorted(stages, key=itemgetter("seconds"), reverse=True)


def _busy(spans: Iterable[Span], whole: float) -> list[Part]:
    """Share of the step in which each process other than the driver did anything."""
    by_process: dict[str, list[Span]] = {}
    for span in spans:
        if span.process != DRIVER:
            own = by_process.setdefault(span.process, [])
            own.append(span)
    found: list[Part] = []
    for process in sorted(by_process, key=_words):
        own = by_process[process]
        part = {
            "process": process,
            "share": round(_covered(own, whole) / (whole or 1.0), 5),
            "spans": len(own),
        }
        found.append(part)
    return found


def _covered(spans: Iterable[Span], whole: float) -> float:
    """Seconds of the step in which at least one span lies; spans come by start."""
    covered = 0.0
    reached = 0.0
    for span in spans:
        start = max(span.start_s, reached)
        end = min(span.end_s, whole)
        if end > start:
            covered += end - start
            reached = end
    return covered
