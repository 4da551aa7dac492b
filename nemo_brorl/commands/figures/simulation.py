"""Figures of the simulator: the three panels of BroRL's Figure 3 for one setting, and Q_pos of several settings side by
side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_brorl.algorithm.theory.simulator import Measurement
from nemo_brorl.commands.figures.style import colour_of, panels, save


def draw_three_panels(curves: Sequence[Measurement], labels: Sequence[str], path: Path) -> None:
    """Q_pos, share of improved correct tokens, and worst change, over steps; one line per rollout size."""
    titles = ("probability of correct answers, Q", "correct tokens that gained, %", "worst change of a correct token")
    figure, axes = panels(3, titles, "step")
    steps = [measurement.step for measurement in curves]
    for index, label in enumerate(labels):
        q_pos, gained, worst_change = [], [], []
        for measurement in curves:
            q_pos.append(float(measurement.q_pos[index]))
            gained.append(100 * float(measurement.share_improved[index]))
            worst_change.append(float(measurement.worst_change[index]))
        colour = colour_of(index)
        axes[0].plot(steps, q_pos, color=colour, label=label)
        axes[1].plot(steps, gained, color=colour)
        axes[2].plot(steps, worst_change, color=colour)
    axes[2].axhline(0, color="black", linewidth=0.6)
    axes[2].set_yscale("symlog", linthresh=1e-6)
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_q(settings: Mapping[str, Sequence[Measurement]], labels: Sequence[str], path: Path) -> None:
    """Q_pos over steps, a panel per setting."""
    figure, axes = panels(len(settings), list(settings), "step")
    for axis, curves in zip(axes, settings.values(), strict=True):
        steps = [measurement.step for measurement in curves]
        for index, label in enumerate(labels):
            q_pos = [float(measurement.q_pos[index]) for measurement in curves]
            axis.plot(steps, q_pos, color=colour_of(index), label=label)
    axes[0].set_ylabel("Q")
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_equal_draws(
    settings: Mapping[str, Sequence[Measurement]], draws_per_step: Mapping[str, int], path: Path
) -> None:
    """Q_pos against the number of draws spent, a line per setting."""
    figure, axes = panels(1, ["equal draws"], "draws, thousands")
    for index, (name, curves) in enumerate(settings.items()):
        draws = [measurement.step * draws_per_step[name] / 1000 for measurement in curves]
        q_pos = [float(measurement.q_pos[0]) for measurement in curves]
        axes[0].plot(draws, q_pos, color=colour_of(index), label=name)
    axes[0].set_ylabel("Q")
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, path)
