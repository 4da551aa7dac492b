"""Draw the figures of simulations, and define the style of every figure: size, palette, grid.

Only this module imports pyplot, so that no display is needed and training never imports it. It draws the three panels
of BroRL's Figure 3 for one setting, and Q_pos of several settings side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from brorl_lab.theory.simulator import Measurement

# Okabe and Ito's palette, which most kinds of colour vision can tell apart. The order is from small N to large N.
COLOURS = ("#999999", "#56B4E9", "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#F0E442")
_PANEL_WIDTH, _PANEL_HEIGHT = 4.6, 3.4  # inches

Curves = Sequence[Measurement]  # one measurement a step, with a value for each rollout size


def colour_of(index: int) -> str:
    """Return the colour of a figure's line by its index. Colours repeat."""
    return COLOURS[index % len(COLOURS)]


def make_panels(
    num: int,
    titles: Sequence[str],
    x_label: str,
) -> tuple[Any, list[Any]]:
    """Return a figure with `num` panels side by side, and their axes."""
    size = (_PANEL_WIDTH * num, _PANEL_HEIGHT)
    figure, axes = plt.subplots(1, num, figsize=size, squeeze=False, layout="constrained")
    for panel, title in zip(axes[0], titles, strict=True):
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(x_label)
        panel.grid(visible=True, alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def add_legend(axis: Any) -> None:
    """Add a legend with the names of the drawn lines to a panel of a figure."""
    axis.legend(frameon=False, fontsize=9)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_three_panels(curves: Curves, labels: Sequence[str], path: Path) -> None:
    """Draw the simulated probability of correct tokens Q_pos, the improved share of them, and their worst change.

    They are drawn over steps, with one line for each rollout size.
    """
    titles = ("probability of correct answers, Q", "correct tokens that gained, %", "worst change of a correct token")
    figure, axes = make_panels(3, titles, "step")
    steps = [measurement.step for measurement in curves]
    q_pos = np.array([measurement.q_pos for measurement in curves])  # [steps, sizes]
    improved = np.array([measurement.share_improved for measurement in curves])
    worst_change = np.array([measurement.worst_change for measurement in curves])
    for index, label in enumerate(labels):
        style = {"color": colour_of(index), "label": label}
        axes[0].plot(steps, q_pos[:, index], **style)
        axes[1].plot(steps, 100 * improved[:, index], **style)
        axes[2].plot(steps, worst_change[:, index], **style)
    axes[2].axhline(0, color="black", linewidth=0.6)
    axes[2].set_yscale("symlog", linthresh=1e-6)
    add_legend(axes[0])
    save_figure(figure, path)


def draw_q(
    settings: Mapping[str, Curves],
    labels: Sequence[str],
    path: Path,
) -> None:
    """Draw the simulated probability of correct tokens, Q_pos, over steps.

    Each setting of the simulator has one panel, each rollout size one line.
    """
    figure, axes = make_panels(len(settings), list(settings), "step")
    for axis, curves in zip(axes, settings.values(), strict=True):
        steps = [measurement.step for measurement in curves]
        q_pos = np.array([measurement.q_pos for measurement in curves])  # [steps, sizes]
        for index, label in enumerate(labels):
            axis.plot(steps, q_pos[:, index], color=colour_of(index), label=label)
    axes[0].set_ylabel("Q")
    add_legend(axes[0])
    save_figure(figure, path)


def draw_equal_draws(
    settings: Mapping[str, Curves],
    draws_per_step: Mapping[str, int],
    path: Path,
) -> None:
    """Draw the probability of correct tokens, Q_pos, against the number of simulated draws of a token.

    Each setting of the simulator has one rollout size and one line.
    """
    figure, axes = make_panels(1, ["equal draws"], "draws, thousands")
    for index, name in enumerate(settings):
        draws = []
        q_pos = []
        for measurement in settings[name]:
            draws.append(measurement.step * draws_per_step[name] / 1000)
            q_pos.append(float(measurement.q_pos[0]))
        axes[0].plot(draws, q_pos, color=colour_of(index), label=name)
    axes[0].set_ylabel("Q")
    add_legend(axes[0])
    save_figure(figure, path)
