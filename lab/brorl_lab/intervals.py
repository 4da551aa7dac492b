"""Read the 95 % interval of a metric from a row of metrics.jsonl."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from brorl_lab.metric_registry import SHARES, find_metric

NORMAL_95 = 1.96  # standard errors of half an interval

Ends = list[float]


def interval_95(row: Mapping[str, Any], name: str) -> Ends | None:
    """Return the 95 % interval of a metric as recorded or, in a row that has only a standard error, by that.

    It is None for an error of 0, which says nothing.
    """
    value, low, high = (as_number(row.get(key)) for key in (name, f"{name}_low", f"{name}_high"))
    if low is not None and high is not None:
        return [low, high]
    error = as_number(row.get(f"{name}_standard_error", row.get(f"{name}_error")))
    if not error or value is None:
        return None
    low, high = value - NORMAL_95 * error, value + NORMAL_95 * error
    metric = find_metric(name)
    is_share = metric is not None and metric.unit in SHARES
    return [max(low, 0.0), min(high, 1.0)] if is_share else [low, high]


def as_number(value: Any) -> float | None:
    """Return a value of a row as a number, or None where it is none or not finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= sys.float_info.max else None
