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
TEXTS = {"pass@1": "{:.1%}", "mean reward": "{:.4g}"}  # formats of a measure's values

Row = Mapping[str, Any]  # metrics of a validation, with its step


def is_better(one: Row, other: Row) -> bool:
    """Return whether a validation is better than another, by pass@1 and, where that is equal, by mean reward."""
    for name in TIES:
        if not _is_tie(name, one, other):
            return bool(one[name] > other[name])
    return False


def _is_tie(name: str, one: Row, other: Row) -> bool:
    # A validation of an earlier version has no mean reward.
    if name not in one or name not in other:
        return True
    # Of rewards around 0 the mean is no measure of their size, and its error is.
    error = one.get(f"{name}_standard_error", 0.0)
    return math.isclose(one[name], other[name], rel_tol=TIES[name], abs_tol=TIES[name] * error)


def record_of(base: Row | None, best: Row) -> dict[str, Any]:
    """Return the record of weights: step, measure and value of their validation, and the value of the base.

    The measure is pass@1, or the mean reward where the base has the same pass@1.
    """
    is_same = base is not None and REWARD in base and REWARD in best and _is_tie(PASS_AT_1, best, base)
    name, measure = (REWARD, "mean reward") if is_same else (PASS_AT_1, "pass@1")
    error = best.get(f"{name}_standard_error", math.nan)
    return {
        "step": int(best["step"]),
        "measure": measure,
        "value": best[name],
        "standard_error": error if math.isfinite(error) else None,
        "base_value": None if base is None else base[name],
        "is_base_better": base is not None and is_better(base, best),
    }


def weights_record(run_folder: Path) -> dict[str, Any] | None:
    """Return the record of the weights in a run's `hf/` as `record_of` made it, or None without a whole one."""
    try:
        record = record_object(run_folder / BEST_WEIGHTS / RECORD, SMALL)
        found = {"measure": record["measure"], "step": int(record["step"]), "value": float(record["value"])}
        for name in ("standard_error", "base_value"):
            found[name] = None if record[name] is None else float(record[name])
        return {**found, "is_base_better": bool(record["is_base_better"])} if found["measure"] in TEXTS else None
    except (OSError, DataError, *MALFORMED):
        return None


def weights_line(run_folder: Path) -> str | None:
    """Return a sentence with the step of the weights in a run's `hf/` and their value, or None without a record."""
    record = weights_record(run_folder)
    if record is None:
        return None
    text = TEXTS[record["measure"]]
    shown = f"{record['measure']} {text.format(record['value'])}"
    if record["standard_error"] is not None:
        shown += f" ± {text.format(record['standard_error'])}"
    if record["base_value"] is not None:
        shown += f", base {text.format(record['base_value'])}"
    if record["is_base_better"]:
        shown += ": the base was better"
    return f"hf/ holds step {record['step']} ({shown})"
