"""The page as HTML: its text, style and program in one file, and for a report the parts that it draws, compressed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from nemo_brorl.commands.run_page import details, lanes
from nemo_brorl.commands.run_page.comparison import comparison
from nemo_brorl.commands.run_page.groups import Columns, StoreTables, group_table, success_rates
from nemo_brorl.commands.run_page.runs import Run, overview, settings_table
from nemo_brorl.core.errors import DataError

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
FIRST = "overview"  # part that stands before the program: the first view is drawn while the others are read
TIMELINES_SHARE = 0.2  # of a report, of each run, at most
STEPS_A_ROUND = 32  # of which a report has responses, at least one group of each, before it has more of any

Part = dict[str, Any]


def report(runs: Sequence[Run], max_mib: float) -> str:
    """The page with everything that it shows, at most so many MiB as far as responses go: their groups are added until
    the page is full. Raises DataError."""
    parts: dict[str, str] = {}
    _put(parts, FIRST, overview(runs))
    _put(parts, "settings", settings_table(runs))
    _put(parts, "comparison", comparison(runs))
    tables: list[dict[int, Columns]] = []
    for number, run in enumerate(runs):
        store = StoreTables(run.folder)
        by_step = store.by_step()
        tables.append(by_step)
        _put(parts, f"rates/{number}", success_rates(by_step))
        table = group_table(by_step)
        table["unreadable"] = store.unreadable
        _put(parts, f"groups/{number}", table)
        _put_timelines(parts, number, run.folder, max_mib)
    without = page("report", runs, parts)
    room = (max_mib * MIB - len(without)) / len(runs)
    for number, by_step in enumerate(tables):
        _put_groups(parts, number, runs[number], by_step, room)
    return page("report", runs, parts)


def _put_timelines(
    parts: dict[str, str],
    number: int,
    folder: Path,
    max_mib: float,
) -> None:
    """Add timelines, the newest first, then from steps spread over the run, while they take a small part of the
    page."""
    found = lanes.timelines(folder)
    _put(parts, f"timelines/{number}", found)
    room = TIMELINES_SHARE * max_mib * MIB
    for step in _spread_steps(found["steps"]):
        try:
            packed = pack(lanes.timeline(folder, step))
        except DataError:  # deleted meanwhile, or damaged
            continue
        room -= len(packed)
        if room < 0:
            return
        parts[f"timeline/{number}/{step}"] = packed


def _put_groups(
    parts: dict[str, str],
    number: int,
    run: Run,
    by_step: Mapping[int, Columns],
    room: float,
) -> None:
    """Add groups with their responses while there is room, in bytes."""
    tokenizer = details.tokenizer_of_run(run.folder)
    for step, row in reading_order(by_step):
        name = f"group/{number}/{step}/{row}"
        try:
            group = details.group_details(run.folder, step, row, tokenizer)
        except DataError:  # deleted meanwhile
            continue
        packed = pack(group)
        room -= len(packed) + len(name) + 60
        if room < 0:
            return
        parts[name] = packed


def reading_order(by_step: Mapping[int, Columns]) -> Iterator[tuple[int, int]]:
    """(step, row) of groups, those first that say most: of steps spread over the run, the newest first, a round of one
    group each; within a step the group with the rarest success, then the others from every part of the range."""
    steps = _spread_steps(sorted(by_step))
    for first in range(0, len(steps), STEPS_A_ROUND):
        chosen = steps[first : first + STEPS_A_ROUND]
        orders = [_groups_in_order(step, by_step[step]) for step in chosen]
        for one_of_each in zip_longest(*orders):
            yield from filter(None, one_of_each)


def _spread_steps(steps: Sequence[int]) -> list[int]:
    """The newest, the first, then what lies between, halving the gaps."""
    gap = max(1, len(steps) - 1)
    order = dict.fromkeys([*steps[-1:], *steps[:1]])
    while gap > 1:
        gap = (gap + 1) // 2
        between = steps[gap::gap]
        order.update(dict.fromkeys(between))
    order.update(dict.fromkeys(steps))
    return list(order)


def _groups_in_order(step: int, columns: Columns) -> list[tuple[int, int]]:
    """(step, row) by success rate, rarest success first, those without a success or a failure last; taken in turn from
    the beginning and the middle."""
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


def pack(part: Part) -> str:
    """JSON, compressed, in base64."""
    text = json.dumps(
        part,
        allow_nan=False,
        separators=(",", ":"),
    )
    packed = gzip.compress(text.encode(), mtime=0)
    return base64.b64encode(packed).decode()


def _put(parts: dict[str, str], name: str, part: Part) -> None:
    parts[name] = pack(part)


def page(mode: str, runs: Sequence[Run], parts: Mapping[str, str]) -> str:
    """The whole page. `mode`: report, with its parts in it, or watch, which asks for them. Nothing is loaded from
    elsewhere and no other program runs: the browser is told so by the policy in its head."""
    style = "\n".join(_asset(name) for name in STYLES)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    inner: dict[str, str] = {}
    for name, packed in parts.items():
        inner[name] = f'<script type="text/plain" id="part:{name}">{packed}</script>'
    first = inner.pop(FIRST, "")
    title = "BroRL: " + " and ".join(run.name for run in runs)
    return Template(_asset("page.html")).substitute(
        mode=mode,
        policy=policy(mode, style, script),
        title=html.escape(title),
        style=style,
        script=script,
        first=first,
        parts="\n".join(inner.values()),
    )


def policy(mode: str, style: str, script: str) -> str:
    """What the page may do: run this program, use this style, and where it is served ask its own server."""
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
    folder = resources.files("nemo_brorl.commands.run_page") / "assets"
    return (folder / name).read_text(encoding="utf-8").strip()
