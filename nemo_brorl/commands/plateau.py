"""`brorl plateau RUN_FOLDER [--window K] [--patience K]`: where the plateau detector would have broadened a run."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.commands.figures.plateau import run


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input."""
    return run(argv, (__doc__ or "").strip())
