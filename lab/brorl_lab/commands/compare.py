"""`brorl compare BEFORE AFTER` tests whether one model is better than another on the same prompts.

It reads what `brorl evaluate` wrote about both. `brorl compare RUN` takes RUN/before and RUN.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from brorl_lab.commands.report import chosen_folders
from brorl_lab.paired_evaluations import BenchmarkComparison, compare_evaluations, read_evaluation
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.core.console import Console, setup_logging
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.evaluation.tables import NONE, interval, share

HEADER = [
    "after against before",
    "prompts",
    "before",
    "after",
    "difference",
    "s.e.",
    "interval",
    "t",
    "p",
    "bootstrap p",
    "+ / = / −",
]
NOTES = (
    "Difference of pass@1 in points, prompt by prompt. p: paired t-test (all sign flips where 12 or fewer differ) and "
    "a bootstrap over prompts, both two-sided and never below that of all signs alike. "
    "+ / = / −: prompts of which the second model gets more, as many, fewer samples right.",
)


def main(argv: Sequence[str]) -> int:
    """Print the comparison of two evaluations, and return exit code 0.

    Raises ConfigError for a wrong number of evaluations, CheckpointError for evaluations that are missing or that
    cannot be compared because their questions or settings differ.
    """
    parser = argparse.ArgumentParser(prog="brorl compare", description=__doc__)
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="an evaluation.json or its folder; with --config-name KEY=VALUE, as for `brorl train`",
    )
    parser.add_argument("--config-name", "-cn", help="compare the evaluations of the run of these settings")
    parser.add_argument(
        "--resamples",
        type=int,
        default=EvaluationConfig().bootstrap_samples,
        metavar="NUM",
        help="resamplings of prompts behind the bootstrap's p (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    setup_logging()
    paths = chosen_folders(options.paths, options.config_name)
    if len(paths) > 2:
        raise ConfigError(f"{len(paths)} evaluations are given: run brorl compare BEFORE AFTER")
    if len(paths) == 1:
        paths = [paths[0] / "before", paths[0]]
    before, after = [read_evaluation(_file(path)) for path in paths]
    rows = comparison_rows(compare_evaluations(before, after, options.resamples))
    console = Console()
    console.line(f"{after.model} against {before.model}:")
    console.table(HEADER, rows)
    for note in NOTES:
        console.line(note)
    return 0


def _file(path: Path) -> Path:
    return path / "evaluation.json" if path.is_dir() else path


def comparison_rows(comparison: Mapping[str, BenchmarkComparison]) -> list[list[str]]:
    """Return the table rows of a comparison of two models, one for each benchmark."""
    rows = []
    for name, found in comparison.items():
        test = found.test
        difference = test.difference
        row = [
            name,
            str(found.num_prompts),
            share(found.before),
            share(found.after),
            f"{100 * difference.value:+.1f}",
            f"{100 * difference.standard_error:.1f}",
            interval(difference, "+"),
            _number(test.t, ".2f"),
            _p(test.p_value),
            _p(test.bootstrap_p_value),
            f"{found.wins} / {found.ties} / {found.losses}",
        ]
        rows.append(row)
    return rows


def _number(value: float, form: str) -> str:
    if np.isnan(value):
        return NONE
    return f"{value:{form}}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else _number(value, ".3f")
