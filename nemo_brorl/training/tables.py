"""Rows of the tables at the end of a run, from its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

STAGES = ("generate", "reward", "log_prob", "update", "sync", "validate", "save")


def change_rows(before: Mapping[str, float], after: Mapping[str, float]) -> list[list[str]]:
    """pass@1 per task and over all, before and after, from two validation rows; last, what the best constant answer
    would earn."""
    names = [name for name in sorted(after) if name.startswith("validation/pass_at_1/")] + ["validation/pass_at_1"]
    return [
        [
            name.removeprefix("validation/pass_at_1/") if name != "validation/pass_at_1" else "all tasks",
            f"{before[name]:.1%}",
            f"{after[name]:.1%}",
            f"{100 * (after[name] - before[name]):+.1f} points",
            f"{after[name.replace('pass_at_1', 'constant_answer')]:.1%}",
        ]
        for name in names
    ]


def time_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Seconds by stage over all steps, with their share of the sum."""
    seconds = {stage: sum(row.get(f"time/{stage}_s") or 0.0 for row in rows) for stage in STAGES}
    total = sum(seconds.values()) or 1.0
    return [[stage, f"{value:.1f}", f"{value / total:.0%}"] for stage, value in seconds.items()]


def sampling_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Keep rate, prefix-cache hits and throughput over all steps of a run."""
    steps = [row for row in rows if row.get("dynamic_sampling/num_groups")]
    if not steps:
        return "no groups were sampled"
    groups = sum(row["dynamic_sampling/num_groups"] for row in steps)
    kept = sum(row["dynamic_sampling/keep_rate"] * row["dynamic_sampling/num_groups"] for row in steps)
    samples = sum(row["generation/num_samples"] for row in steps)
    seconds = sum(row["time/generate_s"] for row in steps)
    hits = float(np.mean([row["generation/prefix_cache_hit_rate"] for row in steps]))
    return (
        f"keep rate {kept / groups:.0%} of {groups:.0f} groups, {samples / seconds:,.0f} samples/s, prefix cache "
        f"hit rate {hits:.0%}"
    )


def step_line(step: int, max_steps: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> str:
    """The one-line summary of a training step."""
    reward = f"reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else "reward carried"
    return (
        f"step {step}/{max_steps}  {reward}  kept {metrics['dynamic_sampling/keep_rate']:.0%}"
        f"  {metrics['generation/samples_per_s']:,.0f} samples/s  kl {metrics.get('policy/kl_to_reference', 0.0):.4f}"
        f"  grad {metrics['policy/grad_norm']:.2f}{_mismatch(metrics['policy/log_prob_mismatch'])}"
        f"  generate {seconds['generate']:.1f} s  update {seconds['log_prob'] + seconds['update']:.1f} s  sync "
        f"{seconds['sync']:.2f} s"
    )


def _mismatch(value: float) -> str:
    """Not known where every rollout is older than the weights that learnt from it."""
    return "" if np.isnan(value) else f"  mismatch {value:.0e}"
