"""Seconds of a step, summed from its row of metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# Parts of a step's time that follow each other; what else is in `time/` lies inside these.
STEP_PARTS = ("collect", "offload", "fetch", "log_prob", "update", "sync", "validate", "save")


def step_seconds(row: Mapping[str, Any], left_out: Collection[str] = ()) -> float:
    """Seconds of a step but for some of its parts, as far as its row of metrics knows them."""
    total = 0.0
    for part in STEP_PARTS:
        if part not in left_out:
            total += row.get(f"time/{part}_s") or 0.0
    return total
