"""List run folders with their state, step, pass@1, throughput and cost: `brorl runs [FOLDER ...]`."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import RecordError

from brorl_launcher.command_line import command_parser
from brorl_launcher.run_state import PACE_STEPS, HeartbeatFile, Row, last_rows, read_run
from brorl_launcher.status import OLD_S, format_duration
from nemo_brorl.core.console import Console, write_out
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.recorded_yaml import read_record, setting_of
from nemo_brorl.core.step_time import step_seconds

SIGNS = ("config.yaml", "metrics.jsonl", "heartbeat.json")  # two of these make a run folder
NUM_SIGNS = 2
MAX_DEPTH = 2  # levels below the given folder
LOOK_S = 2.0  # seconds in which run folders are looked for
MAX_BYTES = 1 << 30  # limit for metrics.jsonl
HOUR_S = 3600.0
HEADER = ["run", "state", "step", "pass@1", "first", "samples/s", "cost", "last update"]
EXAMPLES = """examples:
  brorl runs                     all below runs/
  brorl runs /shared/runs --json
states, by the files of a folder:
  running, stalled   its heartbeat is less than a minute old
  finished           the last step has its checkpoint
  stopped            the driver ended in order before that: on request, or out of time
  failed             the driver ended with an error
  crashed            the heartbeat stopped without an end: killed, or its machine was lost
  not begun          settings, but no sign of a driver yet
"""


@dataclass(frozen=True)
class RunSummary:
    """One run folder as a row of the table. A field is None when its value is not known."""

    folder: str
    state: str
    step: int | None = None
    max_steps: int | None = None
    pass_at_1: float | None = None  # value at the last validation
    standard_error: float | None = None
    first_pass_at_1: float | None = None
    samples_per_s: float | None = None  # mean of the last steps
    hours: float | None = None  # sum over all steps so far
    gpus: int | None = None  # 0: a run on CPU
    nodes: int | None = None
    last_sign_s: float | None = None  # seconds since a file changed


def main(argv: Sequence[str]) -> int:
    """Print a table of training runs, or JSON, and return exit code 0.

    Raises DataError for a missing folder.
    """
    parser = command_parser("runs", "Run folders: state, step, pass@1, throughput, cost.", EXAMPLES)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="where to look (default: runs)")
    parser.add_argument("--json", action="store_true", help="one JSON array, for programs")
    options = parser.parse_args(list(argv))
    folders = options.folders or [Path("runs")]
    found: list[RunSummary] = []
    skipped: list[Path] = []
    until = time.monotonic() + LOOK_S
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder: say where run folders are, brorl runs FOLDER")
        for run in run_folders(folder, skipped, until):
            found.append(summarize_run(run, time.time()))
    if options.json:
        write_out(json.dumps([asdict(run) for run in found]) + "\n")
        return 0
    console = Console()
    if found:
        console.table(HEADER, [table_cells(run) for run in found], text_columns=(0, 1))
    else:
        console.line(f"no run below {', '.join(map(str, folders))}")
    if skipped:
        console.line(f"not searched: {len(skipped):,} folders, such as {skipped[0]}. To search one: brorl runs FOLDER")
    return 0


def run_folders(folder: Path, skipped: list[Path] | None = None, until: float = math.inf) -> Iterator[Path]:
    """Yield the run folders at or below a folder, sorted by name.

    Run folders are not searched for further run folders. Folders that are `MAX_DEPTH` levels below, or whose turn comes
    after `until` (time.monotonic()), are not searched either, and are added to `skipped`.
    """
    skipped = [] if skipped is None else skipped
    for path, names, files in os.walk(folder):
        here = Path(path)
        num_signs = sum(name in files for name in SIGNS)
        if num_signs >= NUM_SIGNS:
            names.clear()
            yield here
            continue
        names[:] = sorted(name for name in names if not name.startswith("."))
        if len(here.relative_to(folder).parts) >= MAX_DEPTH or time.monotonic() > until:
            skipped += [here / name for name in names]
            names.clear()


def summarize_run(
    folder: Path,
    now: float,
) -> RunSummary:
    """Return one run folder's summary.

    Unreadable contents never raise. They make the state "unreadable" with the reason. `now`: seconds since 1970.
    """
    try:
        return _summary(folder, now)
    except (BroRLError, OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        reason = error.reason if isinstance(error, RecordError) else str(error)
        first_line = (reason.splitlines() or [""])[0]
        return RunSummary(str(folder), f"unreadable ({type(error).__name__}: {first_line[:80]})")


def _summary(folder: Path, now: float) -> RunSummary:
    run = read_run(folder)
    rows = last_rows(folder / "metrics.jsonl", MAX_BYTES)
    validations = [row for row in rows if _number(row, "validation/pass_at_1") is not None]
    first = validations[0] if validations else {}
    last = validations[-1] if validations else {}
    nodes, gpus = _devices(folder)
    seconds = [step_seconds(row) for row in rows]
    beat = run.heartbeat
    signs = [path.stat().st_mtime for path in map(folder.joinpath, SIGNS[1:]) if path.exists()]
    return RunSummary(
        folder=str(folder),
        state=_state(beat, run.is_finished, bool(rows), now),
        step=run.step,
        max_steps=run.max_steps,
        pass_at_1=_number(last, "validation/pass_at_1"),
        standard_error=_number(last, "validation/pass_at_1_standard_error"),
        first_pass_at_1=_number(first, "validation/pass_at_1"),
        samples_per_s=_mean(rows[-PACE_STEPS:], "generation/samples_per_s"),
        hours=sum(seconds) / HOUR_S if seconds else None,
        gpus=gpus,
        nodes=nodes,
        last_sign_s=now - max(signs) if signs else None,
    )


def _state(
    beat: HeartbeatFile | None,
    is_finished: bool,
    has_rows: bool,
    now: float,
) -> str:
    if beat is not None and beat.state in ("running", "stalled") and beat.is_fresh(now, OLD_S):
        return beat.state
    if is_finished:
        return "finished"
    if beat is None:
        return "crashed" if has_rows else "not begun"
    return {"ended": "stopped", "failed": "failed"}.get(beat.state, "crashed")


def _devices(folder: Path) -> tuple[int | None, int | None]:
    """Return the number of nodes and the total number of GPUs of a run, or None for both when they are unknown."""
    path = folder / "config.yaml"
    if not path.exists():
        return None, None
    record = read_record(path)
    nodes = setting_of(record, "trainer.num_nodes")
    gpus = setting_of(record, "trainer.gpus_per_node")
    if nodes is None or gpus is None:
        return None, None
    return int(nodes), int(nodes) * int(gpus)


def _number(row: Row, name: str) -> float | None:
    """Return the value of a metric in a row of the metrics file, or None if it is absent or not a finite number."""
    value: Any = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _mean(
    rows: Sequence[Row],
    name: str,
) -> float | None:
    numbers = [_number(row, name) for row in rows]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def table_cells(run: RunSummary) -> list[str]:
    """Return the table cells of one run, as `brorl runs` prints them."""
    step = "" if run.step is None else f"{run.step:,}/{'?' if run.max_steps is None else f'{run.max_steps:,}'}"
    score = "" if run.pass_at_1 is None else f"{run.pass_at_1:.1%}"
    if run.standard_error is not None:
        score += f" ± {run.standard_error:.1%}"
    first = "" if run.first_pass_at_1 is None else f"{run.first_pass_at_1:.1%}"
    rate = "" if run.samples_per_s is None else f"{run.samples_per_s:,.0f}"
    sign = "" if run.last_sign_s is None else f"{format_duration(run.last_sign_s)} ago"
    return [run.folder, run.state, step, score, first, rate, _cost(run), sign]


def _cost(run: RunSummary) -> str:
    """Return the GPU hours of a run as text, or the node hours for a run on CPU."""
    if run.hours is None or run.gpus is None or run.nodes is None:
        return ""
    if run.gpus:
        return f"{run.hours * run.gpus:,.1f} GPU h"
    return f"{run.hours * run.nodes:,.2f} node h"
