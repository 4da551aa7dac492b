"""Record of the weights in a run's `hf/`: the validation that chose them, beside that of the base."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import SMALL, record_object

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import MALFORMED

BEST_WEIGHTS = "hf"  # folder in a run folder
RECORD = "validated.json"  # file in it
PASS_AT_1, REWARD = "validation/pass_at_1", "validation/reward"
# Largest share by which a measure of two validations may differ that are a tie. Rewards have 32 bits.
TIES = {PASS_AT_1: 1e-9, REWARD: 1e-6}
TITLES = {PASS_AT_1: "pass@1", REWARD: "mean reward"}

Row = Mapping[str, Any]  # metrics of a validation, with its step


def is_better(one: Row, other: Row) -> bool:
    """Return whether a validation is better than another, by pass@1 and, where that is equal, by mean reward."""
    for name in TIES:
        if not _is_tie(name, one, other):
            return bool(one[name] > other[name])
    return False


def _is_tie(name: str, one: Row, other: Row) -> bool:
    if name not in one or name not in other:
        # A validation of an earlier version has no mean reward.
        return True
    # Of rewards around 0 the mean is no measure of their size, and its error is.
    error = one.get(f"{name}_standard_error", 0.0)
    return math.isclose(one[name], other[name], rel_tol=TIES[name], abs_tol=TIES[name] * error)


def record_of(base: Row | None, best: Row) -> dict[str, Any]:
    """Return the record of weights: step, measure and value of their validation, beside that of the base.

    The measure is pass@1, or the mean reward where the base has the same pass@1.
    """
    name = PASS_AT_1
    if base is not None and REWARD in base and REWARD in best and _is_tie(PASS_AT_1, best, base):
        name = REWARD
    return {
        "step": int(best["step"]),
        "measure": TITLES[name],
        "value": best[name],
        "standard_error": _finite(best.get(f"{name}_standard_error")),
        "base_value": None if base is None else base[name],
        "is_base_better": base is not None and is_better(base, best),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def read_best_weights(run_folder: Path) -> dict[str, Any] | None:
    """Return the record of the weights in a run's `hf/`, or None without a whole one."""
    try:
        record = record_object(run_folder / BEST_WEIGHTS / RECORD, SMALL)
        describe(record)
        return record
    except (OSError, DataError, *MALFORMED):
        return None


def describe(record: Mapping[str, Any]) -> str:
    """Return a sentence with the step of the weights in `hf/`, their validation, and how it compares with the base."""
    name = {title: title for title in TITLES.values()}[record["measure"]]
    is_share = name == TITLES[PASS_AT_1]
    shown = f"{name} {_text(record['value'], is_share)}"
    if record["standard_error"] is not None:
        shown += f" ± {_text(record['standard_error'], is_share)}"
    base = record["base_value"]
    if base is not None:
        shown += f", base {_text(base, is_share)}"
    if record["is_base_better"]:
        shown += ": the base was better"
    return f"hf/ holds step {int(record['step'])} ({shown})"


def _text(value: float, is_share: bool) -> str:
    return f"{value:.1%}" if is_share else f"{value:.4g}"
