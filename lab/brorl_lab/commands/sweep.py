"""`brorl sweep FILE [--list] [--only K] [--tables]` runs a grid of training runs from one file, seed by seed.

It then compares them at equal samples and at equal time. Complete runs are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from brorl_lab.theory.scaling import Points, fit_runs, hold_back
from nemo_brorl.config.load import load_config
from nemo_brorl.core.clock import SAVED
from nemo_brorl.core.console import Console, write_error
from nemo_brorl.core.errors import LOST, USER_ERROR, ConfigError
from nemo_brorl.core.step_time import step_seconds
from nemo_brorl.training.records import read_metrics

Float64 = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]  # rows of a metrics file
Table = tuple[str, list[str], list[list[str]]]  # title, header, rows

NO_TRAINING = ("validate", "save")  # stages of a step that are not training
SCORE = "validation/pass_at_1"
SEEN_SHARE = 0.6  # share of the compute from which the rest is predicted
UNITS = ("samples", "seconds")

MAX_TRIES = 4  # tries of a run that was saved to resume later, or that lost something on the way


class SweepCurve(NamedTuple):
    """The validations of one run. The first one is of the base."""

    samples: Float64  # rollouts sampled so far, with those of dropped groups
    seconds: Float64  # seconds of training alone
    score: Float64

    def score_at(self, unit: str, amount: float) -> float:
        """Return a run's validation score after an amount of rollouts or seconds, interpolated between validations."""
        return float(np.interp(amount, getattr(self, unit), self.score))

    def amount_to_reach(self, unit: str, score: float) -> float | None:
        """Return after how many rollouts or seconds a run first reaches a validation score, or None if it never does.

        The amount is interpolated between validations.
        """
        return first_reached_at(getattr(self, unit), self.score, score)

    def points(self, unit: str) -> Points:
        """Return a run's validations after the first one, because a sigmoid over compute has no value at 0."""
        return Points(getattr(self, unit)[1:], self.score[1:])


def first_reached_at(amounts: ArrayLike, scores: ArrayLike, score: float) -> float | None:
    """Return the compute at which a piecewise linear curve first reaches a score, or None if it never does."""
    x = np.asarray(amounts, np.float64)
    y = np.asarray(scores, np.float64)
    there = np.flatnonzero(y >= score)
    if len(there) == 0:
        return None
    after = int(there[0])
    if after == 0:
        return float(x[0])
    around = slice(after - 1, after + 1)
    return float(np.interp(score, y[around], x[around]))


def curve_of(rows: Rows) -> SweepCurve | None:
    """Return a run's curve of pass@1 from the rows of its metrics, or None before the second validation."""
    samples = seconds = 0.0
    points: list[tuple[float, float, float]] = []
    for row in rows:
        samples += row.get("generation/num_samples") or 0.0
        seconds += step_seconds(row, NO_TRAINING)
        if row.get(SCORE) is not None:
            points.append((samples, seconds, row[SCORE]))
    if len(points) < 2:
        return None
    columns = np.array(points).T
    return SweepCurve(*columns)


def curves_of(rows_of: Mapping[str, Mapping[int, Rows]]) -> dict[str, dict[int, SweepCurve]]:
    """Return the pass@1 curves of a sweep's runs by arm (combination of settings) and seed.

    Runs with fewer than two validations are left out.
    """
    curves: dict[str, dict[int, SweepCurve]] = {}
    for arm, by_seed in rows_of.items():
        for seed, rows in by_seed.items():
            curve = curve_of(rows)
            if curve is not None:
                curves.setdefault(arm, {})[seed] = curve
    return curves


def tables(rows_of: Mapping[str, Mapping[int, Rows]]) -> list[Table]:
    """Return tables that compare the arms (combinations of settings) of a sweep, by rollouts and by training time.

    They show the scores at the most rollouts (or the longest training time) that all runs reached, each arm against the
    first arm for each seed, how soon an arm reaches the first arm's last score, and fitted sigmoids with their
    predictions.
    """
    curves = curves_of(rows_of)
    if not curves:
        return []
    found = []
    for table in (_score_table, _time_to_match_table, _sigmoid_table):
        found += [table(curves, unit) for unit in UNITS]
    return found


def _score_table(curves: Mapping[str, Mapping[int, SweepCurve]], unit: str) -> Table:
    reached: list[float] = []
    for by_seed in curves.values():
        reached += [getattr(curve, unit)[-1] for curve in by_seed.values()]
    amount = min(reached)
    percent_of: dict[str, dict[int, float]] = {}
    for arm, by_seed in curves.items():
        percent_of[arm] = {seed: 100 * curve.score_at(unit, amount) for seed, curve in by_seed.items()}
    first = next(iter(curves))
    rows = []
    for arm, percents in percent_of.items():
        runs = curves[arm].values()
        begun = [100 * run.score[0] for run in runs]
        validations = [len(run.score) - 1 for run in runs]
        ahead = []
        for seed, percent in percents.items():
            if arm != first and seed in percent_of[first]:
                ahead.append(percent - percent_of[first][seed])
        row = [
            arm,
            str(len(percents)),
            mean_and_interval(begun),
            mean_and_interval(list(percents.values())),
            mean_and_interval(ahead),
            f"{np.mean(validations):.0f}",
        ]
        rows.append(row)
    header = ["arm", "seeds", "base, %", "pass@1, %", "minus the first arm", "validations"]
    title = f"held-out pass@1 at {amount:,.0f} {_unit_name(unit)}: mean over seeds ± 95 % interval"
    return title, header, rows


def _time_to_match_table(curves: Mapping[str, Mapping[int, SweepCurve]], unit: str) -> Table:
    first, *others = curves
    rows = []
    for arm in others:
        cells = [arm]
        for seed, whole in curves[first].items():
            run = curves[arm].get(seed)
            amount = None if run is None else run.amount_to_reach(unit, whole.score[-1])
            if amount is None:
                cells.append("never")
            else:
                share = amount / getattr(whole, unit)[-1]
                cells.append(f"{share:.2f}")
        rows.append(cells)
    title = f"share of the first arm's {_unit_name(unit)} until its last pass@1 is reached, seed by seed"
    seeds = [f"seed {seed}" for seed in curves[first]]
    return title, ["arm", *seeds], rows


def mean_and_interval(values: Sequence[float]) -> str:
    """Return the mean of the values and half the width of Student's 95 % interval, as text.

    Values that are all equal show nothing of their spread. They get no interval, like a single one.
    """
    if len(set(values)) < 2:
        return f"{values[0]:.1f}" if values else ""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    half = stdtrit(len(values) - 1, 0.975) * error
    return f"{np.mean(values):.1f} ± {half:.1f}"


def _sigmoid_table(curves: Mapping[str, Mapping[int, SweepCurve]], unit: str) -> Table:
    rows = []
    for arm, by_seed in curves.items():
        runs = [curve.points(unit) for curve in by_seed.values()]
        fit = fit_runs(runs)
        if fit is None:
            rows.append([arm, "too few points", "", "", ""])
            continue
        row = [arm]
        for name, scale in (("top", 100.0), ("middle", 1.0), ("slope", 1.0)):
            low, high = fit.interval(name)
            cell = f"{scale * getattr(fit.best, name):,.4g}"
            row.append(cell if len(runs) == 1 else f"{cell} ({scale * low:,.4g} … {scale * high:,.4g})")
        rows.append([*row, _prediction_text(runs)])
    title = f"sigmoids of pass@1 over {_unit_name(unit)}, 95 % intervals from two seeds on"
    return title, ["arm", "top, %", f"middle, {_unit_name(unit)}", "slope", "last points predicted"], rows


def _prediction_text(runs: Sequence[Points]) -> str:
    """Return as text how well a sigmoid through the validations up to SEEN_SHARE of the compute predicts later ones.

    The text has the mean error and the number of later validations inside their predicted interval.
    """
    seen, kept_back = hold_back(runs, SEEN_SHARE)
    fit = fit_runs(seen)
    if fit is None:
        return "too few points"
    errors = []
    num_inside = 0
    for run in kept_back:
        for compute, reward in zip(run.compute.tolist(), run.reward.tolist(), strict=True):
            value, low, high = fit.predict(compute)
            errors.append(abs(value - reward))
            num_inside += low <= reward <= high
    if not errors:
        return "none left"
    missed = f"off by {100 * np.mean(errors):.1f} points"
    return missed if len(runs) == 1 else f"{missed}, {num_inside} of {len(errors)} inside"


def _unit_name(unit: str) -> str:
    return "rollouts" if unit == "samples" else "s of training"


def draw_figure(rows_of: Mapping[str, Mapping[int, Rows]], path: Path) -> bool:
    """Draw pass@1 of all arms (combinations of settings) of a sweep over rollouts and over training time.

    Returns False when there is nothing to draw. Every run is a thin line, the mean over the runs of an arm a thick one.
    """
    curves = curves_of(rows_of)
    if not curves:
        return False
    from brorl_lab.commands.figures import add_legend, colour_of, make_panels, save_figure

    figure, axes = make_panels(len(UNITS), ["held-out pass@1, %"] * len(UNITS), "")
    for axis, unit in zip(axes, UNITS, strict=True):
        axis.set_xlabel("rollouts sampled" if unit == "samples" else "training time, s")
        for number, (arm, by_seed) in enumerate(curves.items()):
            colour = colour_of(number)
            members = list(by_seed.values())
            for curve in members:
                axis.plot(getattr(curve, unit), 100 * curve.score, color=colour, linewidth=0.6, alpha=0.5)
            end = min(getattr(curve, unit)[-1] for curve in members)
            amounts = np.linspace(0, end, 50)
            means = np.mean([np.interp(amounts, getattr(curve, unit), curve.score) for curve in members], axis=0)
            axis.plot(amounts, 100 * means, color=colour, linewidth=2, label=arm)
    add_legend(axes[0])
    save_figure(figure, path)
    return True


@dataclass(frozen=True)
class SweepFile:
    """The plan of a sweep: every combination of one value of each axis, with every seed."""

    config: str  # recipe of conf/
    output: str  # folder of the runs
    axes: Mapping[str, Mapping[str, Sequence[str]]]  # axis, its values, and the settings of each value
    seeds: Sequence[int]
    common: Sequence[str] = ()  # settings of all runs
    hypothesis: str = ""  # text written before the runs, printed with the tables


@dataclass(frozen=True)
class SweepRun:
    """One training run of a sweep, with its settings and its folder."""

    arm: str  # values of the axes
    seed: int
    folder: Path
    config_name: str
    overrides: tuple[str, ...]
    max_steps: int

    @property
    def num_done(self) -> int:
        """Number of training steps that the run has finished."""
        path = self.folder / "metrics.jsonl"
        rows = read_metrics(path) if path.exists() else []
        return int(rows[-1]["step"]) if rows else 0

    @property
    def is_complete(self) -> bool:
        return self.num_done >= self.max_steps


def main(argv: Sequence[str]) -> int:
    """Run or show a sweep. Exit code: 0 all runs are complete, 1 a run failed, 2 a mistake in the file or an option."""
    parser = argparse.ArgumentParser(prog="brorl sweep", description=__doc__)
    parser.add_argument("file", type=Path, help="YAML with config, output, axes, seeds, common, hypothesis")
    parser.add_argument("--list", action="store_true", help="runs by number, and how far they are")
    parser.add_argument("--only", type=int, metavar="K", help="run the K-th alone, from 1: for a Slurm array")
    parser.add_argument("--tables", action="store_true", help="tables and figure of what is there, no run")
    options = parser.parse_args(argv)
    file = read_file(options.file)
    runs = plan_runs(file)
    if options.only is not None and not 1 <= options.only <= len(runs):
        write_error(f"\nerror: --only {options.only}: the sweep has runs 1 to {len(runs)}\n")
        return USER_ERROR
    console = Console()
    if options.list:
        list_runs(runs, console)
        return 0
    failed: list[str] = []
    if not options.tables:
        chosen = runs if options.only is None else [runs[options.only - 1]]
        failed = train_all(chosen, console)
    if options.only is None:
        print_tables(file, runs, console)
    for line in failed:
        console.line(line)
    return 1 if failed else 0


def read_file(path: Path) -> SweepFile:
    """Read the YAML file that describes a sweep of training runs.

    Raises ConfigError that names what is missing, unknown, or of the wrong type.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no keys: set config, output, axes and seeds")
    known = {field.name for field in fields(SweepFile)}
    missing = {"config", "output", "axes", "seeds"} - content.keys()
    unknown = content.keys() - known
    if missing or unknown:
        raise ConfigError(
            f"{path}: missing {sorted(missing) or 'nothing'}, unknown {sorted(map(str, unknown)) or 'nothing'}; "
            f"its keys are {', '.join(sorted(known))}"
        )
    _check_axes(path, content["axes"])
    seeds = content["seeds"]
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise ConfigError(f"{path}: seeds={seeds}: set a list of whole numbers, such as [1, 2, 3]")
    return SweepFile(**{str(key): value for key, value in content.items()})


def _check_axes(path: Path, axes: Any) -> None:
    example = "set for example axes: {n: {16: [rollouts.num_per_prompt=16], 512: [rollouts.num_per_prompt=512]}}"
    if not isinstance(axes, dict) or not axes:
        raise ConfigError(f"{path}: axes={axes}: {example}")
    for axis, values in axes.items():
        if not isinstance(values, dict) or not values:
            raise ConfigError(f"{path}: axes.{axis}={values}: {example}")
        for value, overrides in values.items():
            if not isinstance(overrides, list):
                raise ConfigError(f"{path}: axes.{axis}.{value}={overrides} is no list of KEY=VALUE: {example}")


def plan_runs(file: SweepFile) -> list[SweepRun]:
    """Return all training runs of a sweep, ordered by seed.

    A slow spell of the machine then affects all combinations of settings alike. Raises ConfigError for invalid
    settings, before any run starts.
    """
    choices = [list(values.items()) for values in file.axes.values()]
    max_steps: dict[str, int] = {}
    runs = []
    for seed in file.seeds:
        for chosen in itertools.product(*choices):
            names = [f"{axis}={value}" for axis, (value, _) in zip(file.axes, chosen, strict=True)]
            arm = " ".join(names)
            folder = Path(file.output) / "_".join(names).replace("=", "_") / f"seed_{seed}"
            overrides = list(file.common)
            for _, own in chosen:
                overrides += own
            overrides += [f"trainer.seed={seed}", f"exp_manager.explicit_log_dir={folder}"]
            if arm not in max_steps:
                max_steps[arm] = load_config(file.config, overrides).trainer.max_steps
            run = SweepRun(arm, seed, folder, file.config, tuple(overrides), max_steps[arm])
            runs.append(run)
    return runs


def list_runs(runs: Sequence[SweepRun], console: Console) -> None:
    """Print a table of a sweep's runs, with the number of training steps that each has finished."""
    rows = []
    for number, run in enumerate(runs, start=1):
        rows.append([str(number), run.arm, str(run.seed), f"{run.num_done} of {run.max_steps}", str(run.folder)])
    console.table(["run", "arm", "seed", "steps", "folder"], rows)


def train_all(runs: Sequence[SweepRun], console: Console) -> list[str]:
    """Train a sweep's incomplete runs one after the other, and return one error message for each run that failed."""
    failed = []
    for number, run in enumerate(runs, start=1):
        if run.is_complete:
            continue
        console.line(f"run {number} of {len(runs)}: {run.arm}, seed {run.seed}")
        code = train_run(run)
        if code != 0:
            failed.append(f"{run.arm}, seed {run.seed} ended with exit code {code}: see {run.folder}")
    return failed


def train_run(run: SweepRun) -> int:
    """Train one run of a sweep to its end in a separate process, and return the last exit code.

    A process that was interrupted in a way that allows it to resume is started again, up to MAX_TRIES times in all.
    """
    command = [sys.executable, "-m", "nemo_brorl", "train", "--config-name", run.config_name, *run.overrides]
    code = 0
    for _ in range(MAX_TRIES):
        code = subprocess.run(command, check=False).returncode
        if code not in (SAVED, LOST):
            break
    return code


def print_tables(file: SweepFile, runs: Sequence[SweepRun], console: Console) -> None:
    """Print the tables and write the figure of a sweep's runs that have been validated more than once."""
    rows_of: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for run in runs:
        path = run.folder / "metrics.jsonl"
        if path.exists():
            rows_of.setdefault(run.arm, {})[run.seed] = read_metrics(path)
    if file.hypothesis:
        console.line(f"hypothesis, written before the runs: {file.hypothesis.strip()}")
    for title, header, rows in tables(rows_of):
        console.line()
        console.line(title)
        console.table(header, rows)
    figure = Path(file.output) / "sweep.png"
    if draw_figure(rows_of, figure):
        console.line()
        console.line(f"figure: {figure}")
