"""Compare runs for the page: held-out pass@1 with intervals, its cost, and paired tests of evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from brorl_lab.intervals import interval_95
from brorl_lab.page.runs import RunView, read_rows
from brorl_lab.paired_evaluations import EvaluationScores, Successes, has_same_questions, read_evaluation
from brorl_lab.paired_test import paired_test
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.statistics import sum_interval
from nemo_brorl.core.step_time import step_seconds

PASS_AT_1 = "validation/pass_at_1"
CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
SEED = 0
TEXT = (
    "pass@1 at the last step that every run has validated. Differences to the first run take their errors as normal "
    "and independent. Runs that validate on the same questions differ less by chance than that. The paired tests "
    "account for it, where brorl evaluate has scored both."
)

Part = dict[str, Any]
Row = Mapping[str, Any]
Ends = list[float]


def compare_runs(runs: Sequence[RunView]) -> Part:
    """Return the report page's comparison of runs at the last validation step that all of them have.

    It has no rows for a single run or without such a step.
    """
    rows_by_run = [read_rows(run.folder) for run in runs]
    step = _last_common_step(rows_by_run)
    rows: list[Part] = []
    if step is not None and len(runs) > 1:
        first = _validation(rows_by_run[0], step)
        for run, of_run in zip(runs, rows_by_run, strict=True):
            is_first = not rows
            row = _row(run.name, of_run, step, None if is_first else first)
            rows.append(row)
    return {"text": TEXT, "rows": rows, "paired": paired_evaluations(runs)}


def _last_common_step(rows_by_run: Sequence[Sequence[Row]]) -> int | None:
    common: set[int] | None = None
    for rows in rows_by_run:
        steps = {row["step"] for row in _validations(rows)}
        common = steps if common is None else common & steps
    return max(common) if common else None


def _validations(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.get(PASS_AT_1) is not None]


def _validation(rows: Iterable[Row], step: int) -> Row:
    return next(row for row in _validations(rows) if row["step"] == step)


def _row(
    name: str,
    rows: Sequence[Row],
    step: int,
    first: Row | None,
) -> Part:
    found = _validation(rows, step)
    value = found[PASS_AT_1]
    best = max(_validations(rows), key=itemgetter(PASS_AT_1))
    until = [row for row in rows if row["step"] <= step]
    difference, difference_interval = _difference(found, first)
    return {
        "name": name,
        "step": step,
        "value": value,
        "interval": interval_95(found, PASS_AT_1),
        "best": best[PASS_AT_1],
        "best_step": best["step"],
        "rollouts": _total(until, "generation/num_samples"),
        "tokens": _last(until, "rollouts/generated_tokens"),
        "seconds": sum(step_seconds(row) for row in until),
        "difference": difference,
        "difference_interval": difference_interval,
    }


def _difference(found: Row, first: Row | None) -> tuple[float | None, Ends | None]:
    """Return the difference in pass@1 between a run and the first run of a comparison, and its 95 % interval."""
    if first is None:
        return None, None
    difference = found[PASS_AT_1] - first[PASS_AT_1]
    own = interval_95(found, PASS_AT_1)
    other = interval_95(first, PASS_AT_1)
    if own is None or other is None:
        return difference, None
    low, high = sum_interval([(found[PASS_AT_1], (own[0], own[1])), (-first[PASS_AT_1], (-other[1], -other[0]))])
    return difference, [low, high]


def _known(rows: Iterable[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _last(rows: Iterable[Row], name: str) -> float | None:
    values = _known(rows, name)
    return values[-1] if values else None


def _total(rows: Iterable[Row], name: str) -> float | None:
    values = _known(rows, name)
    return sum(values) if values else None


def paired_evaluations(runs: Sequence[RunView]) -> list[Part]:
    """Return paired tests of each run's latest evaluation against that of the first run.

    There is one test for each benchmark on which both runs answered the same questions.
    """
    first, *others = [_evaluation(run.folder) for run in runs]
    tests: list[Part] = []
    for run, own in zip(runs[1:], others, strict=True):
        if first is None or own is None:
            continue
        for name in own.questions:
            if has_same_questions(name, first, own):
                test = _paired(own.successes[name], first.successes[name])
                tests.append({**test, "benchmark": name, "name": run.name, "other": runs[0].name})
    return tests


def _paired(own: Successes, other: Successes) -> Part:
    """Return the paired test of two evaluations of the same prompts."""
    differences = [own[uid] - other[uid] for uid in sorted(own)]
    found = paired_test([differences], CONFIDENCE, NUM_RESAMPLES, SEED)
    ends = found.difference.interval
    return {
        "num_prompts": len(differences),
        "difference": found.difference.value,
        "interval": None if math.isnan(ends[0]) else list(ends),
        "p": found.p_value,
    }


def _evaluation(folder: Path) -> EvaluationScores | None:
    try:
        return read_evaluation(folder / "evaluation.json")
    except CheckpointError:
        return None
