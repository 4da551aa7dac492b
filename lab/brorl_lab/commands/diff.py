"""`brorl diff A B` compares two runs: settings that differ, metrics side by side."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import RecordError
from omegaconf import OmegaConf

from brorl_lab.intervals import as_number, interval_95
from brorl_lab.renamed_metrics import check_metric_name
from nemo_brorl.config.same_run import RECORD, leaves, record_leaves
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.trackers import with_loggers_beside
from nemo_brorl.core.console import Console, write_out
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import why_unreadable
from nemo_brorl.core.run_folders import run_folder
from nemo_brorl.training.records import read_metrics

Rows = Sequence[Mapping[str, Any]]

SCORE = "validation/pass_at_1"
INTERVAL = {f"{SCORE}_standard_error", f"{SCORE}_low", f"{SCORE}_high"}
LAST_STEPS = 10
UNSET = "–"  # a setting that this version did not have, or an absent number
NOT_COMPARED = ("exp_manager.explicit_log_dir",)
SHOWN = (
    "reward/mean",
    "dynamic_sampling/keep_rate",
    "rollouts/response_tokens",
    "rollouts/truncated",
    "policy/entropy",
    "policy/kl_to_reference",
    "policy/kl_to_teacher",
    "policy/grad_norm",
    "policy/clip_fraction",
    "policy/log_prob_mismatch",
    "generation/samples_per_s",
    "time/collect_s",
    "time/update_s",
)


@dataclass(frozen=True)
class MetricComparison:
    """One metric of two runs, A and B, with its spread.

    `spread` is the half-width of a 95 % interval over prompts where `has_interval`, else the standard deviation over
    steps. None: not known.
    """

    name: str
    a: float | None
    b: float | None
    spread_a: float | None
    spread_b: float | None
    has_interval: bool = False

    @property
    def difference(self) -> float | None:
        """The metric's value in run B minus its value in run A, or None when one of them is missing."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def spread(self) -> float | None:
        """Half the width of the 95 % interval of a metric's difference between two runs, taken as independent."""
        if not self.has_interval or self.spread_a is None or self.spread_b is None:
            return None
        return math.hypot(self.spread_a, self.spread_b)


def main(argv: Sequence[str]) -> int:
    """Print how the settings and metrics of two runs differ, and return exit code 0.

    Raises DataError for a run folder without settings or metrics.
    """
    parser = argparse.ArgumentParser(prog="brorl diff", description=__doc__)
    parser.add_argument("a", type=run_folder, metavar="A", help="run folder")
    parser.add_argument("b", type=run_folder, metavar="B", help="run folder")
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="of metrics.jsonl, beside the usual ones"
    )
    parser.add_argument("--all", action="store_true", help="every metric that both have")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    options = parser.parse_args(argv)
    for name in options.metric:
        check_metric_name(name)
    settings = differing_settings(read_settings(options.a), read_settings(options.b))
    rows_a, rows_b = read_rows(options.a), read_rows(options.b)
    names = [*SHOWN, *options.metric]
    if options.all:
        names = sorted(_names(rows_a) & _names(rows_b) - INTERVAL - {SCORE, "step"})
    step = last_common_step(rows_a, rows_b)
    compared = [*compared_scores(rows_a, rows_b)]
    for name in dict.fromkeys(names):
        compared.append(compared_metric(name, rows_a, rows_b, step))
    known = [row for row in compared if row.a is not None or row.b is not None]
    if options.json:
        write_out(as_json(settings, known, step) + "\n")
    else:
        print_comparison(Console(), settings, known, step)
    return 0


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the value of every setting of a run by the setting's dotted name, with interpolations as text.

    Raises DataError when the run's settings cannot be read.
    """
    path = folder / RECORD
    try:
        return record_leaves(path)
    except RecordError as error:
        raise DataError(f"{path} cannot be read ({error.reason}): pass a run folder") from error


def read_rows(folder: Path) -> Rows:
    """Return the rows of a run's metrics file, without damaged ones.

    Raises DataError when the file cannot be read.
    """
    path = folder / "metrics.jsonl"
    try:
        rows = read_metrics(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({why_unreadable(error)}): the run has not finished a step") from error
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


def differing_settings(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
) -> list[tuple[str, str, str]]:
    """Return the name and both values of each setting that differs between runs A and B.

    A setting that the software of one run did not have yet is listed when the other run changed its default.
    """
    structure: Any = OmegaConf.to_container(OmegaConf.structured(BroRLConfig))
    defaults = dict(leaves(with_loggers_beside(structure), ""))
    found = []
    for name in sorted(a.keys() | b.keys()):
        was = a.get(name, UNSET)
        now = b.get(name, UNSET)
        if UNSET in (was, now) and defaults.get(name, UNSET) in (was, now):
            continue
        if was != now and name not in NOT_COMPARED:
            found.append((name, _setting(was), _setting(now)))
    return found


def last_common_step(
    a: Rows,
    b: Rows,
) -> int | None:
    """Return the last training step that the metrics of both runs have, or None when they share no step."""
    steps_a = {row["step"] for row in a}
    steps_b = {row["step"] for row in b}
    both = {step for step in steps_a & steps_b if step > 0}
    return max(both) if both else None


def compared_scores(
    a: Rows,
    b: Rows,
) -> list[MetricComparison]:
    """Return pass@1 of two runs on held-out prompts, at their last common validation and at each run's best one.

    A run's best validation is one of trained weights, where it has some.
    """
    by_step_a = _validations(a)
    by_step_b = _validations(b)
    both = by_step_a.keys() & by_step_b.keys()
    found: list[MetricComparison] = []
    if both:
        last = max(both)
        found.append(_score(f"pass@1 after step {last}", by_step_a[last], by_step_b[last]))
    if by_step_a and by_step_b:
        best_a = _best(by_step_a)
        best_b = _best(by_step_b)
        found.append(_score("best pass@1", best_a, best_b))
    return found


def compared_metric(
    name: str,
    a: Rows,
    b: Rows,
    step: int | None,
) -> MetricComparison:
    """Return a metric's mean and standard deviation in each of two runs.

    They are over the last LAST_STEPS training steps up to `step`, the last step that both runs have.
    """
    mean_a, spread_a = _mean(name, a, step)
    mean_b, spread_b = _mean(name, b, step)
    return MetricComparison(name, mean_a, mean_b, spread_a, spread_b)


def print_comparison(
    console: Console,
    settings: Sequence[tuple[str, str, str]],
    compared: Sequence[MetricComparison],
    step: int | None,
) -> None:
    """Print a table of the settings that differ between two runs, and a table of both runs' metrics."""
    if settings:
        console.table(["setting", "A", "B"], settings, text_columns=(0, 1, 2))
    else:
        console.line("no setting differs")
    console.line()
    rows = [[row.name, _text(row.a, row.spread_a), _text(row.b, row.spread_b), _change(row)] for row in compared]
    console.table(["metric", "A", "B", "B − A"], rows)
    console.line()
    console.line("pass@1: ± half of a 95 % interval over prompts; that of B − A takes the runs as independent")
    if step is None:
        console.line("the runs have no training step in common")
    else:
        console.line(f"other metrics: mean ± standard deviation of the last {LAST_STEPS} steps up to {step}")


def as_json(
    settings: Sequence[tuple[str, str, str]],
    compared: Sequence[MetricComparison],
    step: int | None,
) -> str:
    """Return the differences of two runs, in settings and metrics, as JSON."""
    rows = []
    for row in compared:
        rows.append({**asdict(row), "difference": row.difference, "spread": row.spread})
    found = [{"name": name, "a": a, "b": b} for name, a, b in settings]
    return json.dumps({"settings": found, "metrics": rows, "last_common_step": step})


def _names(rows: Rows) -> set[str]:
    names: set[str] = set()
    for row in rows:
        names.update(row)
    return names


def _validations(rows: Rows) -> dict[int, tuple[float, float | None]]:
    """Return pass@1 and the half-width of its 95 % interval at each validation of a run, by step.

    It is the farther end's distance.
    """
    found = {}
    for row in rows:
        score = as_number(row.get(SCORE))
        if score is not None:
            ends = interval_95(row, SCORE)
            found[row["step"]] = (score, None if ends is None else max(score - ends[0], ends[1] - score))
    return found


def _score(
    name: str,
    a: tuple[float, float | None],
    b: tuple[float, float | None],
) -> MetricComparison:
    return MetricComparison(name, a[0], b[0], a[1], b[1], has_interval=True)


def _best(by_step: Mapping[int, tuple[float, float | None]]) -> tuple[float, float | None]:
    trained = [value for step, value in by_step.items() if step > 0]
    return max(trained or by_step.values(), key=itemgetter(0))


def _mean(
    name: str,
    rows: Rows,
    step: int | None,
) -> tuple[float | None, float | None]:
    values: list[float] = []
    for row in rows:
        value = as_number(row.get(name))
        if value is not None and (step is None or 0 < row["step"] <= step):
            values.append(value)
    values = values[-LAST_STEPS:]
    if not values:
        return None, None
    spread = statistics.stdev(values) if len(values) > 1 else None
    return statistics.fmean(values), spread


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(
    value: float | None,
    spread: float | None,
) -> str:
    if value is None:
        return UNSET
    return f"{value:.4g}" if spread is None else f"{value:.4g} ± {spread:.2g}"


def _change(row: MetricComparison) -> str:
    if row.difference is None:
        return UNSET
    text = f"{row.difference:+.4g}"
    return text if row.spread is None else f"{text} ± {row.spread:.2g}"
