"""Style of every figure: size, palette, grid. Import pyplot from here, so that no display is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

# Okabe and Ito's palette, told apart by most kinds of colour vision; from small N to large N.
COLOURS = ("#999999", "#56B4E9", "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#F0E442")
_PANEL_WIDTH, _PANEL_HEIGHT = 4.6, 3.4  # inches


def colour_of(index: int) -> str:
    """Colour of a line by its number; they repeat."""
    return COLOURS[index % len(COLOURS)]


def panels(
    num: int,
    titles: Sequence[str],
    x_label: str,
) -> tuple[Any, list[Any]]:
    """A figure with `num` panels side by side and their axes."""
    size = (_PANEL_WIDTH * num, _PANEL_HEIGHT)
    figure, axes = plt.subplots(1, num, figsize=size, squeeze=False, layout="constrained")
    for panel, title in zip(axes[0], titles, strict=True):
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(x_label)
        panel.grid(visible=True, alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def add_legend(axis: Any) -> None:
    """Names of a panel's lines."""
    axis.legend(frameon=False, fontsize=9)


def save(figure: Any, path: Path) -> None:
    """Write a PNG and forget the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
