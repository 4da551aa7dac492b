"""Compare the advice of `brorl advise` with the result of a sweep over N.

    python -m lab.studies.advise_check SWEEP.yaml [--axis n] [--steps 10]

For every run, its first steps predict the order of the sweep's sizes N, by signal at equal samples and by signal a
second. Spearman's rank correlation compares that with the order of held-out pass@1 of the same seed, at the most
samples, and at the longest training time, that all runs have reached. With three sizes it can only be ±1 or ±½: read
the mean over runs, and how often the best size was predicted. Runs that differ in something else than N are compared in
separate families.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from brorl_lab.commands.advise import SCORE_NOISES, measured_steps
from brorl_lab.commands.sweep import UNITS, Rows, SweepCurve, SweepRun, curve_of, plan_runs, read_file
from brorl_lab.theory.advice import Outlook, fit_prior, mean_of_steps, predict_outlook
from scipy.stats import spearmanr

from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.generation.placement.costs import PlacementCosts
from nemo_brorl.training.records import read_metrics

NUM_SAMPLES = 1e6  # samples of the outlook, on which the order does not depend


class SizedRun(NamedTuple):
    """A run of a sweep, with its N."""

    size: int
    rows: Rows
    curve: SweepCurve


class Comparison(NamedTuple):
    """The order of sizes predicted from one run of a family, and the order that was measured."""

    family: str  # the runs' common values on the other axes, and their seed
    asked: int  # N of the run that predicts
    unit: str
    score_noise: float
    foretold: list[int]  # predicted order of sizes, best first
    found: list[int]
    correlation: float


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.advise_check", description=__doc__)
    parser.add_argument("sweep", type=Path, help="the file that brorl sweep was given")
    parser.add_argument("--axis", default="n", help="axis of the sweep that N is on")
    parser.add_argument("--steps", type=int, default=10, help="first steps of a run that are asked")
    options = parser.parse_args(argv)
    try:
        runs = plan_runs(read_file(options.sweep))
        families = families_of(runs, options.axis)
        found = []
        for name, members in families.items():
            found += compare(name, members, options.steps)
    except BroRLError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return 2
    if not found:
        sys.stderr.write("\nerror: no two runs of one seed with another N have been validated twice\n")
        return 2
    show(found, Console())
    return 0


def families_of(runs: Sequence[SweepRun], axis: str) -> dict[str, list[SizedRun]]:
    """Return lists of a sweep's runs that differ only in N, the rollouts per prompt.

    The keys name what the runs of a list have in common. Runs with fewer than two validations are left out.
    """
    families: dict[str, list[SizedRun]] = {}
    for run in runs:
        path = run.folder / "metrics.jsonl"
        rows = read_metrics(path) if path.exists() else []
        curve = curve_of(rows)
        if curve is None:
            continue
        common = [part for part in run.arm.split(" ") if not part.startswith(f"{axis}=")]
        name = " ".join([*common, f"seed {run.seed}"])
        size = int(rows[-1]["rollouts/num_per_prompt"])
        families.setdefault(name, []).append(SizedRun(size, rows, curve))
    return families


def compare(name: str, runs: Sequence[SizedRun], num_steps: int) -> list[Comparison]:
    """Compare the order of rollout sizes N predicted from each run with the measured order.

    The runs differ only in N, and are compared at equal rollouts and at equal time. A single run gives no comparison.
    """
    sizes = [run.size for run in runs]
    if len(sizes) < 2:
        return []
    found = []
    for unit in UNITS:
        amount = min(float(getattr(run.curve, unit)[-1]) for run in runs)
        scores = [run.curve.score_at(unit, amount) for run in runs]
        for run in runs:
            for score_noise in SCORE_NOISES:
                outlooks = outlooks_from(run.rows, sizes, num_steps, score_noise)
                worth = [one.signal if unit == "samples" else one.signal_per_second for one in outlooks]
                correlation = float(spearmanr(worth, scores).statistic)
                orders = [best_first(sizes, values) for values in (worth, scores)]
                found.append(Comparison(name, run.size, unit, score_noise, *orders, correlation))
    return found


def outlooks_from(rows: Rows, sizes: Sequence[int], num_steps: int, score_noise: float) -> list[Outlook]:
    """Return what `brorl advise` predicts for the given rollout sizes from a run's first steps.

    Raises DataError when fewer than two steps have all needed metrics.
    """
    measured = mean_of_steps(measured_steps(rows)[:num_steps])
    prior = fit_prior(measured.pass_at, measured.all_right, measured.num_per_prompt)
    prefill_cost = PlacementCosts().prefill
    return [predict_outlook(measured, prior, size, NUM_SAMPLES, score_noise, prefill_cost) for size in sizes]


def best_first(sizes: Sequence[int], worth: Sequence[float]) -> list[int]:
    """Return the rollout sizes sorted by a number that says how good each is, the best first."""
    order = np.argsort(worth, kind="stable")[::-1]
    return [sizes[index] for index in order]


def show(found: Sequence[Comparison], console: Console) -> None:
    """Print how well the predicted ranking of group sizes agrees with the measured one, by rollouts and by time."""
    table = []
    for one in found:
        orders = [" ".join(map(str, order)) for order in (one.foretold, one.found)]
        table.append([one.family, str(one.asked), one.unit, f"{one.score_noise:g}", *orders, f"{one.correlation:.2f}"])
    console.table(["runs", "asked", "equal", "score noise", "foretold", "found", "rank correlation"], table)
    for unit, (mean, share, num) in summary(found).items():
        console.line(f"equal {unit}: rank correlation {mean:.2f} on average, best N foretold in {share:.0%} of {num}")


def summary(found: Sequence[Comparison]) -> Mapping[str, tuple[float, float, int]]:
    """Summarize how well predicted orders of rollout sizes agree with measured ones.

    Returns, for comparisons at equal rollouts and at equal time, the mean rank correlation, the share with the best
    size predicted, and the number of comparisons.
    """
    means = {}
    for unit in UNITS:
        own = [one for one in found if one.unit == unit]
        correlations = [one.correlation for one in own]
        is_best = [one.foretold[0] == one.found[0] for one in own]
        means[unit] = (float(np.mean(correlations)), float(np.mean(is_best)), len(own))
    return means


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
