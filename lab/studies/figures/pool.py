"""Print the table and draw the figure of `lab/studies/cipher_pool.py`'s measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brorl_lab.commands.sweep import first_reached_at, mean_and_interval

from lab.studies.figures.cipher import CipherCurve, draw_curves
from nemo_brorl.core.console import format_table

Runs = dict[tuple[int, float], dict[int, list[dict[str, Any]]]]  # lines by N and retirement, then by seed


def print_pool_table(output: Path) -> None:
    """Print the last pass@1 of runs with each rollout size N, with and without retirement of solved prompts, in %.

    A figure is written next to the file of measurements `output`. Runs with retirement also get the shares of rollouts
    and seconds after which they reach the last pass@1 of the same N without it.
    """
    runs: Runs = {}
    for text in output.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        runs.setdefault((line["n"], line["retire"]), {}).setdefault(line["seed"], []).append(line)
    rows = []
    for (size, retire), by_seed in runs.items():
        without = runs.get((size, 0.0), {})
        ends = []
        for seed, lines in by_seed.items():
            ends.append(100 * lines[-1]["pass@1"])
            row = [label_of(size, retire), str(seed), f"{lines[-1]['sampled']:,}", f"{ends[-1]:.1f}"]
            for unit in ("sampled", "seconds"):
                row.append(share_until(lines, without[seed], unit) if retire and seed in without else "")
            rows.append(row)
        rows.append([label_of(size, retire), "all", "", mean_and_interval(ends), "", ""])
    print("\n".join(format_table(["arm", "seed", "rollouts", "pass@1, %", "rollouts until", "seconds until"], rows)))
    curves: dict[Any, dict[int, CipherCurve]] = {}
    for (size, retire), by_seed in runs.items():
        for seed, lines in by_seed.items():
            curve = CipherCurve(column(lines, "sampled"), column(lines, "pass@1"), [])
            curves.setdefault(label_of(size, retire), {})[seed] = curve
    draw_curves(curves, output.with_suffix(".png"))


def label_of(size: int, retire: float) -> str:
    """Return the label of runs with rollout size `size` that retire prompts from a success rate of `retire` on."""
    return f"N = {size}, retire_from={retire}" if retire else f"N = {size}, all asked"


def share_until(lines: Sequence[Mapping[str, Any]], without: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Return when a run reaches the last pass@1 of the run `without`, as a share of that run's rollouts or seconds.

    The share is a text, which is "never" for a run that does not reach it.
    """
    end = without[-1]
    amount = first_reached_at(column(lines, unit), column(lines, "pass@1"), end["pass@1"])
    return "never" if amount is None else f"{amount / end[unit]:.2f}"


def column(lines: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the values of one measured quantity, such as pass@1, in all lines of a run's measurements."""
    return [line[name] for line in lines]
