"""Declare settings of what a run records: rollouts, timelines, profiles."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_brorl.config.declare import setting


@dataclass
class StoreConfig:
    """Rollout store: every group of every step as Parquet files in the run folder (docs/rollout_store.md)."""

    enabled: bool = setting(True, "store the groups of every step")
    keep_steps: int | None = setting(None, "number of newest steps that are kept; null: all", at_least=1)
    share: float = setting(
        1.0, "share of groups that are stored; with less than 1, no step can be replayed", above=0, at_most=1
    )
    max_gib: float = setting(4.0, "most GiB of all files; beyond it the oldest steps are deleted", above=0)
    text: bool = setting(False, "store responses as text too; costs detokenisation in the background")


@dataclass
class TimelineConfig:
    """Timeline of each step, as trace files in the run folder (docs/howto/look_at_a_run.md)."""

    enabled: bool = setting(True, "write a trace file for every step")
    keep_steps: int = setting(20, "number of newest steps whose trace is kept", at_least=1)


@dataclass
class ProfileConfig:
    """Profiles of policy ranks, in the run folder's profiles/ (docs/howto/look_at_a_run.md)."""

    kind: str = setting(
        "off",
        "profiler. torch: operators and kernels, for Perfetto; nsys: Nsight Systems",
        choices=("off", "torch", "nsys"),
    )
    steps: list[int] = setting([2], "steps whose updates are profiled")
    ranks: list[int] = setting([0], "policy ranks that are profiled")
    memory_snapshot: bool = setting(False, "record allocations, and write a snapshot of GPU memory when it runs out")

    def violations(self) -> Iterator[str]:
        if self.kind == "nsys" and shutil.which("nsys") is None:
            yield "profile.kind=nsys needs Nsight Systems' nsys on the PATH: install it, or set torch"
