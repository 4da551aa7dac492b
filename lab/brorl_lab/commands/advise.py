"""`brorl advise RUN [--samples S] [--steps K]` predicts a run's next samples at other rollout sizes N.

It also compares ways to fill batches, by informative groups, updates, signal-to-noise and time.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brorl_lab.theory.advice import (
    MeasuredSteps,
    Outlook,
    fit_prior,
    mean_of_steps,
    predict_outlook,
    resample_steps,
)
from brorl_lab.theory.success_prior import SuccessPrior
from nemo_brorl.core.console import Console, write_error
from nemo_brorl.core.errors import USER_ERROR, DataError
from nemo_brorl.core.run_folders import metrics_file
from nemo_brorl.generation.placement.costs import PlacementCosts
from nemo_brorl.training.records import read_metrics

SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SCORE_NOISES = (3.0, 30.0)
NUM_RESAMPLES = 40
REACH_ROLLOUTS = 100_000  # rate × updates is printed per so many rollouts
PASS_AT = re.compile(r"rollouts/pass_at_(\d+)")
SOLVED = 0.5  # share of groups with only right rollouts from which the advice is to retire them
STARVED = 0.25  # keep rate below which `full` takes more than four times the samples for an update


def main(argv: Sequence[str]) -> int:
    """Print how well a run is predicted to train with other rollout sizes N, and return the exit code.

    0: done, 2: an option or a file cannot be used.
    """
    parser = argparse.ArgumentParser(prog="brorl advise", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder or metrics.jsonl")
    parser.add_argument("--samples", type=float, default=1e6, help="rollouts to be sampled")
    parser.add_argument("--steps", type=int, default=20, help="newest steps to read")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="N")
    options = parser.parse_args(argv)
    if options.samples <= 0 or options.steps < 2 or min(options.sizes) < 2:
        write_error("\nerror: pass --samples above 0, --steps of at least 2, --sizes of at least 2\n")
        return USER_ERROR
    steps = measured_steps(read_metrics(metrics_file(options.run)))[-options.steps :]
    table, words = build_advice(steps, options.sizes, options.samples)
    console = Console()
    header = ["N", "keep rate", "informative groups", "rate × updates full", "samples", "signal", "seconds", "signal/s"]
    console.table(header, table)
    for line in words:
        console.line(line)
    return 0


def measured_steps(rows: Sequence[Mapping[str, Any]]) -> list[MeasuredSteps]:
    """Return the measurements of a run's newest training steps, back to the last change of N, the rollouts per prompt.

    Raises DataError when fewer than two of these steps have all needed metrics.
    """
    steps: list[MeasuredSteps] = []
    for row in rows:
        step = measured_step(row)
        if step is not None and steps and step.num_per_prompt != steps[-1].num_per_prompt:
            steps = []
        if step is not None:
            steps.append(step)
    if len(steps) < 2:
        raise DataError(
            f"{len(steps)} steps have rollouts/pass_at_… and times: give the metrics.jsonl of a run of two steps at "
            "least, by this version"
        )
    return steps


def measured_step(row: Mapping[str, Any]) -> MeasuredSteps | None:
    """Return a training step's measurements from its row of metrics, or None if the row has no sampled rollouts."""
    pass_at: dict[int, float] = {}
    for name, value in row.items():
        match = PASS_AT.fullmatch(name)
        if match:
            pass_at[int(match[1])] = value
    num_samples = row.get("generation/num_samples", 0.0)
    if not pass_at or not num_samples:
        return None
    num_per_prompt = int(row["rollouts/num_per_prompt"])
    batch_rollouts = num_per_prompt * row["rollouts/prompts_per_step"]
    # Older runs do not say it. Theirs is right where all rollouts of a group are trained on.
    num_trained = row.get("dynamic_sampling/trained_rollouts", batch_rollouts * row["dynamic_sampling/loss_scale"])
    train_s = row["time/log_prob_s"] + row["time/update_s"]
    return MeasuredSteps(
        num_per_prompt=num_per_prompt,
        batch_rollouts=batch_rollouts,
        pass_at=pass_at,
        all_right=row["rollouts/successes_all"],
        prompt_tokens=row["rollouts/prompt_tokens"],
        response_tokens=row["rollouts/response_tokens"],
        mini_batches=row["policy/num_updates"],
        generate_s=row["time/generate_s"] / num_samples,
        train_s=train_s / num_trained,
        publish_s=row.get("time/sync_s", 0.0),
    )


def build_advice(
    steps: Sequence[MeasuredSteps],
    sizes: Sequence[int],
    num_samples: float,
) -> tuple[list[list[str]], list[str]]:
    """Return a table of predictions with a row for each rollout size N, and sentences that draw conclusions.

    A predicted range holds the middle nine tenths of the results over resampled training steps, each with the lowest
    and the highest assumed `score_noise`, the relative variance of scores ∇ log p of right or of wrong answers.
    """
    random = np.random.default_rng(0)
    draws = [steps, *(resample_steps(steps, random) for _ in range(NUM_RESAMPLES))]
    outlooks: dict[int, list[Outlook]] = {num: [] for num in sizes}
    relative: dict[int, list[float]] = {num: [] for num in sizes}
    best: list[int] = []
    for draw in draws:
        measured = mean_of_steps(draw)
        prior = fit_prior(measured.pass_at, measured.all_right, measured.num_per_prompt)
        for score_noise in SCORE_NOISES:
            run = _outlook(measured, prior, measured.num_per_prompt, num_samples, score_noise)
            found = [_outlook(measured, prior, num, num_samples, score_noise) for num in sizes]
            for one in found:
                outlooks[one.num_per_prompt].append(one)
                relative[one.num_per_prompt].append(one.signal_per_second / run.signal_per_second)
            winner = max(found, key=lambda one: one.signal_per_second)
            best.append(winner.num_per_prompt)
    table = [_table_row(num, outlooks[num], relative[num], REACH_ROLLOUTS / num_samples) for num in sizes]
    all_right = mean_of_steps(steps).all_right
    return table, _sentences(steps[-1].num_per_prompt, outlooks, best, all_right)


def _outlook(
    measured: MeasuredSteps,
    prior: SuccessPrior,
    num: int,
    num_samples: float,
    score_noise: float,
) -> Outlook:
    prefill_cost = PlacementCosts().prefill
    return predict_outlook(measured, prior, num, num_samples, score_noise, prefill_cost)


def _table_row(
    num: int,
    outlooks: Sequence[Outlook],
    signal_per_second: Sequence[float],
    reach: float,
) -> list[str]:
    """Return the table cells of one rollout size N, with the ranges of its predictions. `reach` multiplies updates."""
    return [
        str(num),
        _range([one.keep_rate for one in outlooks], "{:.2f}"),
        _range([one.informative_groups for one in outlooks], "{:,.0f}"),
        _range([one.updates_full * reach for one in outlooks], "{:,.1f}"),
        _range([one.updates_samples * reach for one in outlooks], "{:,.1f}"),
        _range([one.signal for one in outlooks], "{:.2f}"),
        _range([one.seconds for one in outlooks], "{:,.0f}"),
        _range(signal_per_second, "{:.2f}"),
    ]


def _range(values: Sequence[float], template: str) -> str:
    """Return the range of the middle nine tenths of the values as text, or one number where both ends print alike."""
    low, high = np.percentile(values, (5, 95))
    first = template.format(low)
    last = template.format(high)
    return first if first == last else f"{first} – {last}"


def _sentences(
    run_num: int,
    outlooks: Mapping[int, Sequence[Outlook]],
    best: Sequence[int],
    all_right: float,
) -> list[str]:
    """Return sentences that say which rollout sizes N are predicted to give the most signal per second.

    A range of N shows the uncertainty. `all_right` is the share of groups without a wrong rollout.
    """
    lowest, highest = np.percentile(best, (5, 95), method="nearest")
    which = f"N = {lowest}" if lowest == highest else f"N between {lowest} and {highest}"
    lines = [
        f"signal: squared signal-to-noise of the samples (and a second), over the run's N = {run_num}, for estimators "
        f"that are linear in the reward; from a score noise of {SCORE_NOISES[0]:g} to {SCORE_NOISES[1]:g}",
        f"rate × updates: learning rate over the run's, times updates per {REACH_ROLLOUTS:,} rollouts. A batch has as "
        "many rollouts at every N, so the rate is the run's",
        f"most signal per second: {which}. maxrl and grpo weigh hard prompts more, which favours a larger N",
    ]
    starved: list[str] = []
    for num, found in outlooks.items():
        keep_rate = float(np.median([one.keep_rate for one in found]))
        if keep_rate < STARVED:
            starved.append(str(num))
    if starved:
        lines.append(
            f"dynamic_sampling.fill=full makes less than a quarter of the updates of fill=samples at N = "
            f"{', '.join(starved)}: set it to samples there"
        )
    if all_right >= SOLVED:
        lines.append(
            f"{all_right:.0%} of groups are right in every rollout and have no gradient: if prompts are repeated, "
            "rollouts.prompt_pool.name=brorl_lab.prompt_pool:retiring_pool leaves them out, which no other N does"
        )
    return lines
