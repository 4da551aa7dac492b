"""Seconds of a step: their sum from its row of metrics, and the pace of the last steps by the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

# Consecutive parts of a step's time. Other `time/` metrics lie inside these.
STEP_PARTS = ("collect", "offload", "fetch", "log_prob", "update", "sync", "validate", "save")

PACE_STEPS = 10  # last steps that a pace covers


def step_seconds(row: Mapping[str, Any], left_out: Collection[str] = ()) -> float:
    """Return the seconds of a training step from its row of metrics, without the parts in `left_out`.

    Parts that the row lacks count 0.
    """
    total = 0.0
    for part in STEP_PARTS:
        if part not in left_out:
            total += row.get(f"time/{part}_s") or 0.0
    return total


class Pace:
    """The time between the ends of the last steps, which includes what lies between them, such as validations."""

    def __init__(self, now: float) -> None:
        """Begin the first step. `now`: time.monotonic()."""
        self._ends = deque([now], maxlen=PACE_STEPS + 1)

    def step_ended(self, now: float) -> float:
        """Record the end of a step, and return the mean seconds of the last steps."""
        self._ends.append(now)
        return (now - self._ends[0]) / (len(self._ends) - 1)


def rounded_seconds(seconds: float) -> str:
    """Return seconds in words of a line: whole ones from 10 on, and two digits below."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"
