"""Tables for the end of a run, and the console line of a step, made from metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PASS_AT_1 = "validation/pass_at_1"
LINE_WIDTH = 80  # most characters of a step's line
CURVE_WIDTH = 60  # characters of a bar of 100 %
STAGES = ("generate", "reward", "log_prob", "update", "sync", "validate", "save")


def change_rows(before: Mapping[str, float], after: Mapping[str, float]) -> list[list[str]]:
    """Return table rows of pass@1 before and after training, for each task and for all tasks.

    `before` and `after` are the metrics of two validations. The last column is the pass@1 of the best constant answer.
    """
    prefix = f"{PASS_AT_1}/"
    names = [name for name in sorted(after) if name.startswith(prefix)]
    rows: list[list[str]] = []
    for name in [*names, PASS_AT_1]:
        title = "all tasks" if name == PASS_AT_1 else name.removeprefix(prefix)
        points = 100 * (after[name] - before[name])
        constant = "–"
        earned = after.get(name.replace("pass_at_1", "constant_answer"))
        if earned is not None:
            constant = f"{earned:.1%}"
        rows.append([title, f"{before[name]:.1%}", f"{after[name]:.1%}", f"{points:+.1f} points", constant])
    return rows


def curve_lines(validations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for every validation of a run: step, pass@1 and a bar as long as pass@1."""
    lines: list[str] = []
    for row in validations:
        pass_at_1 = row[PASS_AT_1]
        bar = "█" * round(CURVE_WIDTH * pass_at_1)
        lines.append(f"step {row['step']:>5}  {pass_at_1:>6.1%}  {bar}")
    return lines


def time_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return table rows of the seconds of each stage of training over all steps, with their share of the sum."""
    seconds: dict[str, float] = {}
    for stage in STAGES:
        seconds[stage] = sum(row.get(f"time/{stage}_s") or 0.0 for row in rows)
    total = sum(seconds.values()) or 1.0
    return [[stage, f"{value:.1f}", f"{value / total:.0%}"] for stage, value in seconds.items()]


def sampling_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line with share of informative groups, samples per second and prefix-cache hit rate over all steps."""
    steps = [row for row in rows if row.get("dynamic_sampling/num_groups")]
    if not steps:
        return "no groups were sampled"
    num_groups = num_kept = num_samples = seconds = hit_rates = 0.0
    for row in steps:
        num_groups += row["dynamic_sampling/num_groups"]
        num_kept += row["dynamic_sampling/keep_rate"] * row["dynamic_sampling/num_groups"]
        num_samples += row["generation/num_samples"]
        seconds += row["time/generate_s"]
        hit_rates += row["generation/prefix_cache_hit_rate"]
    return (
        f"keep rate {num_kept / num_groups:.0%} of {num_groups:.0f} groups, {num_samples / seconds:,.0f} samples/s,"
        f" prefix cache hit rate {hit_rates / len(steps):.0%}"
    )


def step_line(step: int, max_steps: int, metrics: Mapping[str, float], left_s: float | None = None) -> str:
    """Return the one-line summary of a training step, in at most `LINE_WIDTH` characters if possible.

    Its seconds are those of sampling with scoring, and those of the update. `left_s`: seconds until the run's end.
    """
    reward = f"reward {short_number(metrics['reward/mean'])}" if "reward/mean" in metrics else "reward – (no group)"
    sampled_s = metrics["time/generate_s"] + metrics.get("time/reward_s", 0.0)
    update_s = metrics["time/log_prob_s"] + metrics["time/update_s"]
    fields = [
        f"step {step}/{max_steps}",
        reward,
        f"informative {metrics['dynamic_sampling/keep_rate']:.0%}",
        f"{short_seconds(sampled_s)} + {short_seconds(update_s)} s",
    ]
    if left_s is not None and step < max_steps:
        fields.append(f"left {clock_time(left_s)}")
    kl = f"KL {metrics.get('policy/kl_to_teacher', metrics.get('policy/kl_to_reference', 0.0)):.4f}"
    line = "  ".join([*fields[:3], kl, *fields[3:]])
    return line if len(line) <= LINE_WIDTH else "  ".join(fields)


def short_number(value: float) -> str:
    """Return a number with three decimals, or with four digits where it is large."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def short_seconds(seconds: float) -> str:
    """Return seconds as a number with two digits or more."""
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"


def clock_time(seconds: float) -> str:
    """Return a duration as text, such as 6:40 for 400 seconds, or 2:06:40 for hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
