"""What the ranks of a policy do in a test, and what came of it; no process and no device here."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import Float32, UpdatePlan
from tests.support.learners import save, weight_buckets


@dataclass(frozen=True)
class Scenario:
    """What every rank does, in this order; None: leave out."""

    config: BroRLConfig
    model_folder: Path
    load_from: Path | None = None
    plans: tuple[UpdatePlan, ...] = ()
    save_to: Path | None = None
    export_to: Path | None = None
    score: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]] | None = None  # prompts, responses

    def play(self, learner: Any) -> Outcome:
        """One rank's part, by its `nemo_brorl.policy.rank.learner.Learner`."""
        if self.load_from:
            learner.load(self.load_from)
        reports = [learner.update(plan) for plan in self.plans]
        if self.save_to:
            save(learner, self.save_to)
        if self.export_to:
            learner.export(self.export_to)
        log_probs = learner.log_probs(*self.score) if self.score else None
        checksum = 0
        for bucket in weight_buckets(learner):
            checksum = zlib.crc32(bucket.data, checksum)
        num_skipped = sum(report.num_skipped for report in reports)
        return Outcome([report.metrics for report in reports], num_skipped, checksum, log_probs)


@dataclass(frozen=True)
class Outcome:
    """What came out on one rank."""

    metrics: list[dict[str, float]] = field(
        default_factory=list
    )  # per plan; empty dicts except on the last pipeline stage
    num_skipped: int = 0
    checksum: int = 0  # of the exported weights
    log_probs: list[Float32] | None = None
