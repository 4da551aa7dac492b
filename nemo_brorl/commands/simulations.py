"""What `python -m nemo_brorl simulate` does: the settings of the simulator's study, its tables, CSV files and
figures."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from nemo_brorl.algorithm.theory.simulator import PAPER_SIZES, Measurement, Simulation, ablations, equal_draws, run
from nemo_brorl.commands.figures.simulation import draw_equal_draws, draw_q, draw_three_panels
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError

Curves = dict[str, list[Measurement]]
_SMALL, _LARGE = 512, 51200  # of the comparison at equal draws


def parse(argv: Sequence[str], description: str) -> argparse.Namespace:
    """The command line. `--help` and unknown options end the program, as argparse does."""
    parser = argparse.ArgumentParser(prog="brorl simulate", description=description)
    parser.add_argument("--output", type=Path, default=Path("runs/simulation"), help="folder for CSV files and figures")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(PAPER_SIZES), help="rollout sizes N")
    parser.add_argument("--tokens", type=int, default=128_000, help="tokens of the vocabulary")
    parser.add_argument("--correct", type=int, default=10_000, help="how many of them are correct")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("float32", "float64"), default="float32")
    parser.add_argument(
        "--only-paper", action="store_true", help="the paper's setting alone, without ablations and equal draws"
    )
    return parser.parse_args(argv)


def simulate(argv: Sequence[str], description: str) -> int:
    """Run the study. Exit code 2 when a setting cannot be."""
    options = parse(argv, description)
    base = Simulation(
        sizes=tuple(options.sizes), num_tokens=options.tokens, num_correct=options.correct, num_steps=options.steps,
        precision=options.precision, seed=options.seed,
    )  # fmt: skip
    try:
        _study(base, options.output, with_ablations=not options.only_paper)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return 2
    return 0


def _study(base: Simulation, folder: Path, with_ablations: bool) -> None:
    base.check()
    console = Console()
    chosen = ablations(base) if with_ablations else {"paper": base}
    compared = equal_draws(base, _SMALL, _LARGE) if with_ablations else {}
    folder.mkdir(parents=True, exist_ok=True)
    curves = _run_all(chosen, console)
    labels = [f"N={size}" for size in base.sizes]
    write_csv(folder / "simulation.csv", chosen, curves)
    draw_three_panels(curves["paper"], labels, folder / "figure_3.png")
    for name, measurements in curves.items():
        console.line(f"\n{name}, after {base.num_steps} steps")
        console.table(_HEADER, _rows(labels, measurements))
    if with_ablations:
        draw_q(curves, labels, folder / "ablations.png")
        budget = _run_all(compared, console)
        write_csv(folder / "equal_draws.csv", compared, budget)
        draw_equal_draws(
            budget, {name: setting.sizes[0] for name, setting in compared.items()}, folder / "equal_draws.png"
        )
        console.line(f"\n{base.num_steps * _SMALL:,} draws in all, learning rate of the large N as named")
        console.table(_HEADER, [row for name, measurements in budget.items() for row in _rows([name], measurements)])
    console.line(f"\nwritten to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _run_all(settings: Mapping[str, Simulation], console: Console) -> Curves:
    return {
        name: list(console.track(f"simulation, {name}", run(setting), setting.num_steps + 1, "steps"))
        for name, setting in settings.items()
    }


_HEADER = ("", "Q at 0", "Q", "gained %", "worst Δp", "steps with ΔQ < 0")


def _rows(labels: Sequence[str], curves: Sequence[Measurement]) -> list[list[str]]:
    """One row per rollout size: its last measurement, and how many steps lost mass."""
    first, last = curves[0], curves[-1]
    num_falls = np.sum([after.q_pos < before.q_pos for before, after in pairwise(curves)], axis=0)
    return [
        [
            label,
            f"{first.q_pos[row]:.4f}",
            f"{last.q_pos[row]:.4f}",
            f"{100 * last.share_improved[row]:.1f}",
            f"{last.worst_change[row]:.1e}",
            str(num_falls[row]),
        ]
        for row, label in enumerate(labels)
    ]


def write_csv(path: Path, settings: Mapping[str, Simulation], curves: Mapping[str, Iterable[Measurement]]) -> None:
    """Every step of every setting and rollout size, one line each."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["setting", "num_rollouts", "seed", "step", "q_pos", "share_improved", "worst_change"])
        for name, measurements in curves.items():
            for measurement in measurements:
                writer.writerows(
                    [name, size, settings[name].seed, measurement.step]
                    + [
                        float(values[row])
                        for values in (measurement.q_pos, measurement.share_improved, measurement.worst_change)
                    ]
                    for row, size in enumerate(settings[name].sizes)
                )
