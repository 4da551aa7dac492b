"""Render the page as HTML: text, style and program in one file, and for a report its compressed data.

One part of the data is the timeline of a step, as rows: what each process did when, and how busy it was.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import zip_longest
from operator import attrgetter, itemgetter
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from brorl_graders.base.foreign import inert_line

from brorl_lab.page import details
from brorl_lab.page.comparison import compare_runs
from brorl_lab.page.groups import Columns, StoreTables, group_table, newest_rates, success_rates
from brorl_lab.page.runs import RunView, overview, settings_table
from brorl_lab.trace_reader import read_spans, timeline_steps
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.timeline import DRIVER, TimelineSpan, top_stages

MAX_SPANS = 4_000  # spans of a step: the driver's and the longest others
WORDS = re.compile(r"(\d+)|(\D+)")
MAX_ROLLOUTS = 8  # chunks that a span names

Part = dict[str, Any]
Row = tuple[str, str, int]  # process, track, number of spans of the track around it

MIB = 1024**2
STYLES = ("uplot.css", "page.css")
SCRIPTS = (
    "uplot.js",
    "base.js",
    "charts.js",
    "views.js",
    "marks.js",
    "timeline.js",
    "app.js",
)
FIRST = "overview"  # part placed before the program, so that the first view is drawn early
TIMELINES_SHARE = 0.2  # largest share of a report for each run's timelines
STEPS_A_ROUND = 32  # steps that get at least one group with responses before any gets more


def timelines(folder: Path) -> Part:
    """Return the steps of a run that have a timeline, for the report page."""
    return {"steps": timeline_steps(folder)}


def timeline(folder: Path, step: int, max_spans: int = MAX_SPANS) -> Part:
    """Return a training step's timeline for the report page: rows and time spans, in seconds since the step began.

    The span of the whole step is left out. Names of spans and chunks of rollouts are indices into lists. Raises
    DataError when the timeline is missing.
    """
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
    """Names with their indices, in the order of their first use."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def _longest(spans: Sequence[TimelineSpan], num: int) -> list[TimelineSpan]:
    """Return the time spans of the driver process and the longest spans of other processes, up to `num` in all.

    They are sorted by start.
    """
    if len(spans) <= num:
        return list(spans)
    others = [span for span in spans if span.process != DRIVER]
    others.sort(key=attrgetter("seconds"), reverse=True)
    num_driver = len(spans) - len(others)
    too_short = {id(span) for span in others[max(0, num - num_driver) :]}
    return [span for span in spans if id(span) not in too_short]


def _rows_of(spans: Iterable[TimelineSpan]) -> list[Row]:
    """Return the row of a timeline in which each time span is drawn, as process, track and nesting depth.

    Spans must be sorted by start, an outer span before those inside it.
    """
    open_spans: dict[tuple[str, str], list[TimelineSpan]] = {}
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
    return process != DRIVER, _natural_order(process), _natural_order(lane), depth


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in a name by their value."""
    found: list[tuple[int, str]] = []
    for digits, letters in WORDS.findall(name):
        number = int(digits or 0)
        found.append((number, letters))
    return found


def _stages(spans: Sequence[TimelineSpan]) -> list[Part]:
    """Return the names and seconds of a training step's stages, longest first, with stages of one name added up."""
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


def _busy(spans: Iterable[TimelineSpan], whole: float) -> list[Part]:
    """Return the share of a training step's time in which each process other than the driver was busy."""
    by_process: dict[str, list[TimelineSpan]] = {}
    for span in spans:
        if span.process != DRIVER:
            own = by_process.setdefault(span.process, [])
            own.append(span)
    found: list[Part] = []
    for process in sorted(by_process, key=_natural_order):
        own = by_process[process]
        part = {
            "process": process,
            "share": round(_covered(own, whole) / (whole or 1.0), 5),
            "spans": len(own),
        }
        found.append(part)
    return found


def _covered(spans: Iterable[TimelineSpan], whole: float) -> float:
    """Return the seconds of a training step that at least one time span covers.

    Spans must be sorted by start.
    """
    covered = 0.0
    reached = 0.0
    for span in spans:
        start = max(span.start_s, reached)
        end = min(span.end_s, whole)
        if end > start:
            covered += end - start
            reached = end
    return covered


def render_report(runs: Sequence[RunView], max_mib: float, watch: Stopwatch | None = None) -> str:
    """Return the HTML report about runs, with all of its data in the page.

    Responses are added until the page has `max_mib` MiB. `watch` measures the stages of the work. Raises DataError when
    a run's data cannot be read.
    """
    watch = watch or Stopwatch()
    parts: dict[str, str] = {}
    with watch.measure("curves"):
        _put(parts, FIRST, overview(runs))
        _put(parts, "settings", settings_table(runs))
        _put(parts, "comparison", compare_runs(runs))
    tables: list[dict[int, Columns]] = []
    for number, run in enumerate(runs):
        with watch.measure(f"groups of {run.name}"):
            store = StoreTables(run.folder)
            by_step = store.by_step()
            tables.append(by_step)
            _put(parts, f"newest/{number}", newest_rates(by_step))
            _put(parts, f"rates/{number}", success_rates(by_step))
            table = group_table(by_step)
            table["unreadable"] = store.unreadable
            _put(parts, f"groups/{number}", table)
        with watch.measure(f"timelines of {run.name}"):
            _put_timelines(parts, number, run.folder, max_mib)
    without = render_page("report", runs, parts)
    room = (max_mib * MIB - len(without)) / len(runs)
    for number, by_step in enumerate(tables):
        with watch.measure(f"responses of {runs[number].name}"):
            _put_groups(parts, number, runs[number], by_step, room)
    return render_page("report", runs, parts)


def _put_timelines(
    parts: dict[str, str],
    number: int,
    folder: Path,
    max_mib: float,
) -> None:
    """Add a run's timelines to the report page while they take a small part of its size.

    The timeline of the newest step comes first, then those of steps spread over the run.
    """
    found = timelines(folder)
    _put(parts, f"timelines/{number}", found)
    room = TIMELINES_SHARE * max_mib * MIB
    for step in _spread_steps(found["steps"]):
        try:
            packed = compress_part(timeline(folder, step))
        except DataError:  # deleted meanwhile, or damaged
            continue
        room -= len(packed)
        if room < 0:
            return
        parts[f"timeline/{number}/{step}"] = packed


def _put_groups(
    parts: dict[str, str],
    number: int,
    run: RunView,
    by_step: Mapping[int, Columns],
    room: float,
) -> None:
    """Add groups of rollouts with their responses to the report page until `room` bytes are used."""
    tokenizer = details.tokenizer_of_run(run.folder)
    for step, row in reading_order(by_step):
        name = f"group/{number}/{step}/{row}"
        try:
            group = details.group_details(run.folder, step, row, tokenizer)
        except DataError:  # deleted meanwhile
            continue
        packed = compress_part(group)
        room -= len(packed) + len(name) + 60
        if room < 0:
            return
        parts[name] = packed


def reading_order(by_step: Mapping[int, Columns]) -> Iterator[tuple[int, int]]:
    """Yield the groups of rollouts for the report page as (step, row), the most telling ones first.

    Steps are spread over the run, the newest first, and take turns with one group each. Within a step the group with
    the rarest success comes first, then groups from every part of the range of success rates.
    """
    steps = _spread_steps(sorted(by_step))
    for first in range(0, len(steps), STEPS_A_ROUND):
        chosen = steps[first : first + STEPS_A_ROUND]
        orders = [_groups_in_order(step, by_step[step]) for step in chosen]
        for one_of_each in zip_longest(*orders):
            yield from filter(None, one_of_each)


def _spread_steps(steps: Sequence[int]) -> list[int]:
    """Return a run's steps in the order newest, oldest, then those between, each time halving the gaps."""
    gap = max(1, len(steps) - 1)
    order = dict.fromkeys([*steps[-1:], *steps[:1]])
    while gap > 1:
        gap = (gap + 1) // 2
        between = steps[gap::gap]
        order.update(dict.fromkeys(between))
    order.update(dict.fromkeys(steps))
    return list(order)


def _groups_in_order(step: int, columns: Columns) -> list[tuple[int, int]]:
    """Return the groups of a training step as (step, row), with the group of the rarest success first.

    Groups are sorted by success rate and taken in turn from the beginning and the middle of that order. Groups without
    a success or without a failure come last.
    """
    rates = columns["num_right"] / columns["num_rollouts"]
    is_settled = (rates == 0) | (rates == 1)
    rows = np.lexsort((rates, is_settled)).tolist()
    order: list[tuple[int, int]] = []
    while rows:
        order.append((step, rows.pop(0)))
        if rows:
            row = rows.pop(len(rows) // 2)
            order.append((step, row))
    return order


def as_json(part: Part) -> str:
    """Return a part of the report page's data as JSON, with null for numbers that JSON does not have."""
    try:
        return json.dumps(part, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(_finite(part), separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compress_part(part: Part) -> str:
    """Return a part of the report page's data as compressed JSON in base64."""
    packed = gzip.compress(as_json(part).encode(), mtime=0)
    return base64.b64encode(packed).decode()


def _put(parts: dict[str, str], name: str, part: Part) -> None:
    parts[name] = compress_part(part)


def render_page(mode: str, runs: Sequence[RunView], parts: Mapping[str, str]) -> str:
    """Return the whole HTML page of a report about runs.

    `mode` is "report" for a page that contains its data, or "watch" for a page that requests them from its server. The
    browser loads nothing from elsewhere and runs no other program, by the content security policy in the page's head.
    """
    style = "\n".join(_asset(name) for name in STYLES)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    inner: dict[str, str] = {}
    for name, packed in parts.items():
        inner[name] = f'<script type="text/plain" id="part:{name}">{packed}</script>'
    first = inner.pop(FIRST, "")
    title = "BroRL: " + " and ".join(run.name for run in runs)
    return Template(_asset("page.html")).substitute(
        mode=mode,
        policy=content_security_policy(mode, style, script),
        title=html.escape(inert_line(title)),
        style=style,
        script=script,
        first=first,
        parts="\n".join(inner.values()),
    )


def content_security_policy(mode: str, style: str, script: str) -> str:
    """Return the content security policy of the HTML report page.

    The page may run its own program, use its own style, and in watch mode send requests to its own server.
    """
    connect = "'self'" if mode == "watch" else "'none'"
    rules = (
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "img-src data:",
        f"connect-src {connect}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    written = base64.b64encode(digest).decode()
    return f"sha256-{written}"


def _asset(name: str) -> str:
    folder = resources.files("brorl_lab.page") / "assets"
    return (folder / name).read_text(encoding="utf-8").strip()
