"""Tabulate and draw `lab/studies/cipher_plain.py`: probability of right answers over rollouts sampled, arm by arm."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from brorl_lab.commands.sweep import mean_and_interval

AMOUNTS = (102_400, 204_800, 307_200)  # rollouts


class PlainArm(NamedTuple):
    """The settings that runs of several seeds have in common."""

    n: int
    advantage: str
    lr: float
    fill: str

    def __str__(self) -> str:
        return f"N = {self.n}, {self.advantage}, {self.fill}, {self.lr:g}"


class CipherCurve(NamedTuple):
    """The measurements of one training run: rollouts, success and updates."""

    sampled: list[int]
    score: list[float]
    updates: list[int]


def read_curves(lines: Iterable[str]) -> dict[PlainArm, dict[int, CipherCurve]]:
    """Return curves of held-out pass@1 over sampled rollouts, by combination of settings and by seed."""
    curves: dict[PlainArm, dict[int, CipherCurve]] = {}
    for line in lines:
        row = json.loads(line)
        arm = PlainArm(row["n"], row["advantage"], row["lr"], row["fill"])
        curve = curves.setdefault(arm, {}).setdefault(row["seed"], CipherCurve([], [], []))
        curve.sampled.append(row["sampled"])
        curve.score.append(row["pass@1"])
        curve.updates.append(row["updates"])
    return curves


def score_at(curve: CipherCurve, amount: int) -> float:
    """Return a run's pass@1 after a number of rollouts, interpolated between measurements."""
    return float(np.interp(amount, curve.sampled, curve.score))


def arm_table(curves: dict[PlainArm, dict[int, CipherCurve]]) -> tuple[Sequence[str], list[list[str]]]:
    """Return the header and rows of a table of pass@1 after given numbers of rollouts.

    Each combination of settings has one row. Cells are the mean over seeds ± Student's 95 % interval, in %. Incomplete
    runs are left out.
    """
    header = ["arm", "seeds", *(f"{amount:,}" for amount in AMOUNTS), "updates"]
    rows = []
    for arm, by_seed in curves.items():
        done = [curve for curve in by_seed.values() if curve.sampled[-1] >= AMOUNTS[-1]]
        if not done:
            continue
        cells = [str(arm), str(len(done))]
        for amount in AMOUNTS:
            cells.append(mean_and_interval([100 * score_at(curve, amount) for curve in done]))
        updates = [curve.updates[-1] for curve in done]
        rows.append([*cells, f"{min(updates)} – {max(updates)}"])
    return header, rows


def draw_curves(curves: Mapping[Any, Mapping[int, CipherCurve]], path: Path) -> None:
    """Draw every run's pass@1 over sampled rollouts, on a linear and on a logarithmic scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    plots: Any = figure.subplots(1, 2)
    for number, (arm, by_seed) in enumerate(curves.items()):
        for place, curve in enumerate(by_seed.values()):
            label = str(arm) if place == 0 else None
            for plot in plots:
                plot.plot(np.array(curve.sampled) / 1000, curve.score, color=f"C{number}", label=label, linewidth=1.2)
    plots[1].set_yscale("log")
    for plot in plots:
        plot.set_xlabel("rollouts sampled, thousands")
        plot.set_ylabel("probability of the right answer")
        plot.grid(alpha=0.3)
    plots[0].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
