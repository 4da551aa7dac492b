"""Figures of the simulator: the three panels of BroRL's Figure 3 for one setting, and Q_pos of several settings side by
side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_brorl.algorithm.theory.simulator import Measurement
from nemo_brorl.commands.figures.style import COLOURS, panels, save


def draw_three_panels(curves: Sequence[Measurement], labels: Sequence[str], path: Path) -> None:
    """Q_pos, share of improved correct tokens, and worst change, over steps; one line per rollout size."""
    titles = ("probability of correct answers, Q", "correct tokens that gained, %", "worst change of a correct token")
    figure, axes = panels(3, titles, "step")
    steps = [measurement.step for measurement in curves]
    for row, label in enumerate(labels):
        colour = COLOURS[row % len(COLOURS)]
        axes[0].plot(steps, [float(m.q_pos[row]) for m in curves], color=colour, label=label)
        axes[1].plot(steps, [100 * float(m.share_improved[row]) for m in curves], color=colour)
        axes[2].plot(steps, [float(m.worst_change[row]) for m in curves], color=colour)
    axes[2].axhline(0, color="black", linewidth=0.6)
    axes[2].set_yscale("symlog", linthresh=1e-6)
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_q(settings: Mapping[str, Sequence[Measurement]], labels: Sequence[str], path: Path) -> None:
    """Q_pos over steps, a panel per setting."""
    figure, axes = panels(len(settings), list(settings), "step")
    for axis, curves in zip(axes, settings.values(), strict=True):
        for row, label in enumerate(labels):
            values = [float(m.q_pos[row]) for m in curves]
            axis.plot([m.step for m in curves], values, color=COLOURS[row % len(COLOURS)], label=label)
    axes[0].set_ylabel("Q")
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_equal_draws(
    settings: Mapping[str, Sequence[Measurement]], draws_per_step: Mapping[str, int], path: Path
) -> None:
    """Q_pos against the number of draws spent."""
    figure, axes = panels(1, ["equal draws"], "draws, thousands")
    for row, (name, curves) in enumerate(settings.items()):
        draws = [m.step * draws_per_step[name] / 1000 for m in curves]
        axes[0].plot(draws, [float(m.q_pos[0]) for m in curves], color=COLOURS[row % len(COLOURS)], label=name)
    axes[0].set_ylabel("Q")
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, path)
