"""Draw the figure of the cluster model: ways to dispatch rollouts, over the number of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from brorl_lab.commands.figures import COLOURS, make_panels, save_figure

from lab.studies.cluster_model.cluster import ClusterResult

Curve = Sequence[tuple[int, ClusterResult]]  # (number of engines, result)


def draw_scaling(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw the makespan, idle share and prefill of simulated dispatchers over the number of engines.

    The makespan is divided by its lower bound, and prefill by computing every prompt once. Each way to dispatch has one
    line.
    """
    titles = ("makespan over the lower bound", "engines idle, %", "prompts computed, times")
    figure, axes = make_panels(3, titles, "engines")
    for row, (name, curve) in enumerate(curves.items()):
        engines = [num for num, _ in curve]
        style = {"color": COLOURS[row % len(COLOURS)], "marker": "o", "markersize": 3, "label": name}
        axes[0].plot(engines, [result.over_bound for _, result in curve], **style)
        axes[1].plot(engines, [100 * result.idle_share for _, result in curve], **style)
        axes[2].plot(engines, [result.prefill_ratio for _, result in curve], **style)
    for axis in axes:
        axis.set_xscale("log", base=2)
    axes[0].axhline(1.1, color="black", linewidth=0.6, linestyle=":")
    axes[2].set_yscale("log", base=2)
    axes[0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)
