"""`brorl sweep FILE [--list] [--only K] [--tables]` runs a grid of training runs from one file, seed by seed, and says
what came out at equal samples and at equal time. Runs that are complete are not run again."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from nemo_brorl.commands.sweep_tables import draw, tables
from nemo_brorl.config.load import load_config
from nemo_brorl.core.clock import SAVED
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import LOST, USER_ERROR, ConfigError
from nemo_brorl.core.metric_sinks import read_metrics

MAX_TRIES = 4  # of a run that was saved to go on later, or lost something on the way


@dataclass(frozen=True)
class SweepFile:
    """What is to be run: every combination of one value of each axis, with every seed."""

    config: str  # a recipe of conf/
    output: str  # folder of the runs
    axes: Mapping[str, Mapping[str, Sequence[str]]]  # axis: value: the settings it stands for
    seeds: Sequence[int]
    common: Sequence[str] = ()  # settings of all runs
    hypothesis: str = ""  # written down before the runs; printed with the tables


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    arm: str  # values of the axes
    seed: int
    folder: Path
    config_name: str
    overrides: tuple[str, ...]
    max_steps: int

    @property
    def num_done(self) -> int:
        """Steps that its metrics hold."""
        path = self.folder / "metrics.jsonl"
        rows = read_metrics(path) if path.exists() else []
        return int(rows[-1]["step"]) if rows else 0

    @property
    def is_complete(self) -> bool:
        return self.num_done >= self.max_steps


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 all runs are complete, 1 a run failed, 2 a mistake in the file or an option."""
    parser = argparse.ArgumentParser(prog="brorl sweep", description=__doc__)
    parser.add_argument("file", type=Path, help="YAML with config, output, axes, seeds, common, hypothesis")
    parser.add_argument("--list", action="store_true", help="runs by number, and how far they are")
    parser.add_argument("--only", type=int, metavar="K", help="run the K-th alone, from 1: for a Slurm array")
    parser.add_argument("--tables", action="store_true", help="tables and figure of what is there, no run")
    options = parser.parse_args(argv)
    try:
        file = read_file(options.file)
        runs = plan_runs(file)
    except ConfigError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return USER_ERROR
    if options.only is not None and not 1 <= options.only <= len(runs):
        sys.stderr.write(f"\nerror: --only {options.only}: the sweep has runs 1 to {len(runs)}\n")
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
        show(file, runs, console)
    for line in failed:
        console.line(line)
    return 1 if failed else 0


def read_file(path: Path) -> SweepFile:
    """Raises ConfigError that names what is missing, unknown, or of another kind than it should be."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no keys: write config, output, axes and seeds")
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
        raise ConfigError(f"{path}: seeds={seeds}: write a list of whole numbers, such as [1, 2, 3]")
    return SweepFile(**{str(key): value for key, value in content.items()})


def _check_axes(path: Path, axes: Any) -> None:
    example = "write for example axes: {n: {16: [rollouts.num_per_prompt=16], 512: [rollouts.num_per_prompt=512]}}"
    if not isinstance(axes, dict) or not axes:
        raise ConfigError(f"{path}: axes={axes}: {example}")
    for axis, values in axes.items():
        if not isinstance(values, dict) or not values:
            raise ConfigError(f"{path}: axes.{axis}={values}: {example}")
        for value, overrides in values.items():
            if not isinstance(overrides, list):
                raise ConfigError(f"{path}: axes.{axis}.{value}={overrides} is no list of KEY=VALUE: {example}")


def plan_runs(file: SweepFile) -> list[SweepRun]:
    """All runs, seeds outermost, so that a slow spell of the machine falls on all arms alike. Their settings are
    checked: raises ConfigError before the first one starts."""
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
    """Table of the runs."""
    rows = []
    for number, run in enumerate(runs, start=1):
        rows.append([str(number), run.arm, str(run.seed), f"{run.num_done} of {run.max_steps}", str(run.folder)])
    console.table(["run", "arm", "seed", "steps", "folder"], rows)


def train_all(runs: Sequence[SweepRun], console: Console) -> list[str]:
    """Run what is not complete, one after the other; a line for each run that failed."""
    failed = []
    for number, run in enumerate(runs, start=1):
        if run.is_complete:
            continue
        console.line(f"run {number} of {len(runs)}: {run.arm}, seed {run.seed}")
        code = train(run)
        if code != 0:
            failed.append(f"{run.arm}, seed {run.seed} ended with exit code {code}: see {run.folder}")
    return failed


def train(run: SweepRun) -> int:
    """One run to its end, in a process of its own. Returns its last exit code."""
    command = [sys.executable, "-m", "nemo_brorl", "train", "--config-name", run.config_name, *run.overrides]
    code = 0
    for _ in range(MAX_TRIES):
        code = subprocess.run(command, check=False).returncode
        if code not in (SAVED, LOST):
            break
    return code


def show(file: SweepFile, runs: Sequence[SweepRun], console: Console) -> None:
    """Tables and figure of the runs that have been validated more than once."""
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
    if draw(rows_of, figure):
        console.line()
        console.line(f"figure: {figure}")
