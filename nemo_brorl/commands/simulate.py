"""`brorl simulate [--output FOLDER] [--steps K] [--sizes N ...]`: BroRL's simulator (Figure 3), tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.commands.simulations import simulate


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input."""
    return simulate(argv, (__doc__ or "").strip())
