"""Read the runs of a sweep over N: curves over samples and training time, and tables at equal amounts of either."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from brorl_lab.commands.figures import COLOURS, make_panels, save_figure
from numpy.typing import NDArray

Curve = NDArray[np.float64]
Table = tuple[list[str], list[list[str]]]

_NOT_TRAINING = ("time/validate_s", "time/save_s", "time/save_background_s")
_PER_STEP = {
    "keep rate": ("dynamic_sampling/keep_rate", "{:.0%}"),
    "samples/s": ("generation/samples_per_s", "{:,.0f}"),
    "update s/step": ("time/update_s", "{:.1f}"),
    "tokens/answer": ("rollouts/response_tokens", "{:.2f}"),
    "unsampled mass": ("mass_balance/unsampled_mass", "{:.1%}"),
    "gain/step": ("mass_balance/measured_gain", "{:.3f}"),
    "signal-to-noise": ("mass_balance/signal_to_noise", "{:.1f}"),
}


@dataclass(frozen=True)
class SizeRun:
    """One run of a sweep over N, as curves.

    `samples` counts all rollouts sampled, those of dropped groups too. `seconds` counts training alone.
    """

    size: int  # N
    seed: int
    samples: Curve  # samples up to each validation
    seconds: Curve  # seconds up to each validation
    scores: Mapping[str, Curve]  # pass@1 and the largest pass@k [validations]
    steps: Mapping[str, Curve]  # values [steps] by name of _PER_STEP

    @classmethod
    def from_rows(
        cls, size: int, seed: int, rows: Sequence[Mapping[str, Any]], rate: tuple[float, float] | None = None
    ) -> SizeRun:
        """Return a run's curves of pass@1 and pass@k and its step metrics, from the rows of its metrics file.

        A validation in a step's row comes after that step. Where `rate` is given, it replaces the run's own training
        times by times from another measurement: rollouts sampled per second, and seconds of all else in a step.
        """
        samples = np.cumsum([row.get("generation/num_samples", 0.0) for row in rows])
        spent = [sum(value for name, value in row.items() if is_training_time(name)) for row in rows]
        if rate is not None:
            spent = [
                row["generation/num_samples"] / rate[0] + rate[1] if "generation/num_samples" in row else 0.0
                for row in rows
            ]
        seconds = np.cumsum(spent)
        at = [index for index, row in enumerate(rows) if "validation/pass_at_1" in row]
        names = [name for name in rows[at[0]] if re.fullmatch(r"validation/pass_at_\d+", name)]
        steps = [row for row in rows if "generation/num_samples" in row]
        return cls(
            size,
            seed,
            samples[at],
            seconds[at],
            {
                name.removeprefix("validation/").replace("_at_", "@"): np.array([rows[index][name] for index in at])
                for name in names
            },
            {label: np.array([row.get(name, np.nan) for row in steps]) for label, (name, _) in _PER_STEP.items()},
        )

    def score_at(self, name: str, axis: str, amount: float) -> float:
        """Return a run's validation score after an amount of samples or seconds, interpolated between validations."""
        return float(np.interp(amount, getattr(self, axis), self.scores[name]))


def is_training_time(name: str) -> bool:
    """Return whether a metric is one of the times that add up to a step's training time.

    `time/generate_s` and `time/reward_s` are not, because `time/collect_s` includes them.
    """
    return name.startswith("time/") and name not in (*_NOT_TRAINING, "time/generate_s", "time/reward_s")


def sweep_tables(runs: Sequence[SizeRun]) -> dict[str, Table]:
    """Return tables of a sweep's scores at equal samples and at equal time, and of the costs and metrics of a step.

    Cells are mean ± standard error over seeds, with a row for each rollout size N.
    """
    samples, seconds = (min(getattr(run, axis)[-1] for run in runs) for axis in ("samples", "seconds"))
    names = list(runs[0].scores)
    return {
        f"at {samples:,.0f} samples": _score_table(runs, names, "samples", samples),
        f"after {seconds:.0f} s of training": _score_table(runs, names, "seconds", seconds),
        "per step": _step_table(runs),
    }


def _score_table(runs: Sequence[SizeRun], names: Sequence[str], axis: str, amount: float) -> Table:
    other = "seconds" if axis == "samples" else "samples"
    rows = [
        [
            f"N = {size}",
            *(_mean_and_error([100 * run.score_at(name, axis, amount) for run in members]) for name in names),
            *(
                _mean_and_error([100 * (run.score_at(name, axis, amount) - run.scores[name][0]) for run in members])
                for name in names[:1]
            ),
            f"{np.mean([np.interp(amount, getattr(run, axis), getattr(run, other)) for run in members]):,.0f}",
        ]
        for size, members in by_size(runs).items()
    ]
    return ["arm", *(f"{name}, %" for name in names), "change of pass@1", other], rows


def _step_table(runs: Sequence[SizeRun]) -> Table:
    rows = []
    for size, members in by_size(runs).items():
        cells = []
        for label, (_, form) in _PER_STEP.items():
            known = np.concatenate([run.steps[label] for run in members])
            known = known[np.isfinite(known)]
            cells.append(form.format(known.mean()) if len(known) else "")
        rows.append([f"N = {size}", str(len(members)), *cells])
    return ["arm", "seeds", *_PER_STEP], rows


def by_size(runs: Sequence[SizeRun]) -> dict[int, list[SizeRun]]:
    """Return the runs of a sweep by their rollout size N, ascending."""
    return {size: [run for run in runs if run.size == size] for size in sorted({run.size for run in runs})}


def _mean_and_error(values: Sequence[float]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):.1f} ± {error:.1f}"


def draw_sweep(runs: Sequence[SizeRun], path: Path) -> None:
    """Draw a sweep's pass@1 and pass@k over samples and over time into `path`, and step metrics into `…_steps.png`."""
    names = list(runs[0].scores)
    titles = [f"{name}, held out, %" for name in names for _ in range(2)]
    figure, axes = make_panels(len(titles), titles, "")
    for index, name in enumerate(names):
        for axis, unit, scale in ((axes[2 * index], "samples", 1000), (axes[2 * index + 1], "seconds", 1)):
            _draw_mean(axis, [(run, getattr(run, unit) / scale, 100 * run.scores[name]) for run in runs])
            axis.set_xlabel("rollouts sampled, thousands" if unit == "samples" else "training time, s")
    axes[0].legend(frameon=False, fontsize=9)
    save_figure(figure, path)
    shown = ["keep rate", "samples/s", "tokens/answer", "signal-to-noise"]
    figure, axes = make_panels(len(shown), shown, "step")
    for axis, label in zip(axes, shown, strict=True):
        _draw_mean(
            axis, [(run, np.arange(len(run.steps[label]), dtype=np.float64) + 1.0, run.steps[label]) for run in runs]
        )
    axes[0].legend(frameon=False, fontsize=9)
    save_figure(figure, path.with_name(f"{path.stem}_steps.png"))


def _draw_mean(axis: Any, curves: Sequence[tuple[SizeRun, Curve, Curve]]) -> None:
    """Draw a sweep's curves, with the mean over seeds of each rollout size N as a line and single runs as faint lines.

    `curves` holds (run, x values, y values) for each run.
    """
    for row, size in enumerate(sorted({run.size for run, _, _ in curves})):
        members = [(x, y) for run, x, y in curves if run.size == size]
        length = min(len(y) for _, y in members)
        colour = COLOURS[row % len(COLOURS)]
        for x, y in members:
            axis.plot(x[:length], y[:length], color=colour, alpha=0.25, linewidth=0.8)
        mean_x, mean_y = (np.mean([member[part][:length] for member in members], axis=0) for part in (0, 1))
        axis.plot(mean_x, mean_y, color=colour, label=f"N = {size}", marker=".")
