"""`brorl simulate [--output FOLDER] [--steps K] [--sizes N ...]` runs BroRL's simulator (Figure 3).

It writes tables and figures.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from brorl_lab.theory.simulator import PAPER_SIZES, Measurement, Simulation, ablations, equal_draws, simulate
from nemo_brorl.core.console import Console, write_error
from nemo_brorl.core.errors import USER_ERROR, ConfigError

SMALL, LARGE = 512, 51200  # rollout sizes compared at equal draws
TABLE_HEADER = ("", "Q at 0", "Q", "gained %", "worst Δp", "steps with ΔQ < 0")
CSV_HEADER = ("setting", "num_rollouts", "seed", "step", "q_pos", "share_improved", "worst_change")

Curves = dict[str, list[Measurement]]  # one measurement a step, by setting


def main(argv: Sequence[str]) -> int:
    """Run BroRL's simulator, and write its tables and figures. Exit code: 0 done, 2 a setting that is not possible."""
    options = parse(argv)
    base = Simulation(
        sizes=tuple(options.sizes),
        num_tokens=options.tokens,
        num_correct=options.correct,
        num_steps=options.steps,
        precision=options.precision,
        seed=options.seed,
    )
    try:
        base.check()
        options.output.mkdir(parents=True, exist_ok=True)
        if options.only_paper:
            study_settings(base, {"paper": base}, options.output)
        else:
            study_settings(base, ablations(base), options.output)
            study_equal_draws(base, options.output)
    except (ConfigError, ValueError) as error:
        write_error(f"\nerror: {error}\n")
        return USER_ERROR
    names = sorted(path.name for path in options.output.iterdir())
    Console().line(f"\nwritten to {options.output}: {', '.join(names)}")
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of `brorl simulate`.

    `--help` and unknown options end the program, as argparse does.
    """
    parser = argparse.ArgumentParser(prog="brorl simulate", description=__doc__)
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


def study_settings(
    base: Simulation,
    settings: Mapping[str, Simulation],
    folder: Path,
) -> None:
    """Simulate all rollout sizes under each setting, print a table for each, and draw Figure 3 and any ablations.

    Figure 3 is the one of the BroRL paper (arXiv 2510.01180).
    """
    from brorl_lab.commands.figures import draw_q, draw_three_panels

    console = Console()
    curves = run_all(settings, console)
    labels = [f"N={size}" for size in base.sizes]
    write_csv(folder / "simulation.csv", settings, curves)
    draw_three_panels(curves["paper"], labels, folder / "figure_3.png")
    if len(curves) > 1:
        draw_q(curves, labels, folder / "ablations.png")
    for name, measurements in curves.items():
        console.line(f"\n{name}, after {base.num_steps} steps")
        console.table(TABLE_HEADER, table_rows(labels, measurements))


def study_equal_draws(base: Simulation, folder: Path) -> None:
    """Compare a small and a large rollout size in BroRL's simulator after equally many drawn tokens."""
    from brorl_lab.commands.figures import draw_equal_draws

    console = Console()
    settings = equal_draws(base, SMALL, LARGE)
    curves = run_all(settings, console)
    write_csv(folder / "equal_draws.csv", settings, curves)
    sizes = {name: setting.sizes[0] for name, setting in settings.items()}
    draw_equal_draws(curves, sizes, folder / "equal_draws.png")
    console.line(f"\n{base.num_steps * SMALL:,} draws in all, learning rate of the large N as named")
    rows = []
    for name, measurements in curves.items():
        rows += table_rows([name], measurements)
    console.table(TABLE_HEADER, rows)


def run_all(settings: Mapping[str, Simulation], console: Console) -> Curves:
    """Simulate every setting of BroRL's simulator, with a progress line, and return their measurements."""
    curves = {}
    for name, setting in settings.items():
        start = time.monotonic()
        console.begin()
        measurements: list[Measurement] = []
        for measurement in simulate(setting):
            measurements.append(measurement)
            passed_s = time.monotonic() - start
            console.progress(f"simulation, {name}", len(measurements), setting.num_steps + 1, "steps", passed_s)
        console.clear()
        curves[name] = measurements
    return curves


def table_rows(labels: Sequence[str], curves: Sequence[Measurement]) -> list[list[str]]:
    """Return the simulator's table, with one row for each rollout size.

    A row has the last measurement, and how many steps lost probability of correct tokens.
    """
    first, last = curves[0], curves[-1]
    falls = [after.q_pos < before.q_pos for before, after in pairwise(curves)]
    num_falls = np.sum(falls, axis=0)
    rows = []
    for index, label in enumerate(labels):
        rows.append(
            [
                label,
                f"{first.q_pos[index]:.4f}",
                f"{last.q_pos[index]:.4f}",
                f"{100 * last.share_improved[index]:.1f}",
                f"{last.worst_change[index]:.1e}",
                str(num_falls[index]),
            ]
        )
    return rows


def write_csv(
    path: Path,
    settings: Mapping[str, Simulation],
    curves: Curves,
) -> None:
    """Write the simulator's measurements as CSV, with one line for each step, setting and rollout size."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_HEADER)
        for name, measurements in curves.items():
            for measurement in measurements:
                writer.writerows(csv_rows(name, settings[name], measurement))


def csv_rows(
    name: str,
    setting: Simulation,
    measurement: Measurement,
) -> Iterator[list[Any]]:
    """Yield the CSV rows of one simulated step, one for each rollout size."""
    for index, size in enumerate(setting.sizes):
        q_pos = float(measurement.q_pos[index])
        share_improved = float(measurement.share_improved[index])
        worst_change = float(measurement.worst_change[index])
        yield [name, size, setting.seed, measurement.step, q_pos, share_improved, worst_change]
