"""What a rank sends back from an update. A file of its own, so that the driver can read it without importing torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankReport:
    """What one rank did in an update; metrics are empty except on the last pipeline stage."""

    metrics: dict[str, float]
    seconds: dict[str, float]
    num_updates: int
    num_skipped: int
