"""What a metric is: its name, its unit, what it is taken over, its meaning."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Metric(NamedTuple):
    """One metric, or a family of them."""

    name: str  # without its group
    unit: str  # "": a plain number
    aggregation: str  # over what the number is taken, and how
    meaning: str


@cache
def pattern_of(name: str) -> re.Pattern[str]:
    """What the names of a family look like: `{…}` may be anything without a slash."""
    literals = re.split(r"\{\w+\}", name)
    return re.compile(r"[^/]+".join(re.escape(literal) for literal in literals))
