"""Sum the seconds of a step from its row of metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# Consecutive parts of a step's time. Other `time/` metrics lie inside these.
STEP_PARTS = ("collect", "offload", "fetch", "log_prob", "update", "sync", "validate", "save")


def step_seconds(row: Mapping[str, Any], left_out: Collection[str] = ()) -> float:
    """Return the seconds of a training step from its row of metrics, without the parts in `left_out`.

    Parts that the row lacks count 0.
    """
    total = 0.0
    for part in STEP_PARTS:
        if part not in left_out:
            total += row.get(f"time/{part}_s") or 0.0
    return total
