"""Define what describes a metric: its name, its unit, its aggregation and its meaning."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Metric(NamedTuple):
    """One metric, or a family of metrics with a placeholder in the name."""

    name: str  # name without the group
    unit: str  # "": a plain number
    aggregation: str  # numbers that are combined, and how
    meaning: str


@cache
def pattern_of(name: str) -> re.Pattern[str]:
    """Return a regular expression for a declared metric name, where `{…}` matches any text without a slash."""
    literals = re.split(r"\{\w+\}", name)
    return re.compile(r"[^/]+".join(re.escape(literal) for literal in literals))
