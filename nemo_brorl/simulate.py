"""`python -m nemo_brorl.simulate [--output FOLDER] [--steps K] [--sizes N ...]`: BroRL's simulator (Figure 3), tables and figures."""

from __future__ import annotations

import sys

from nemo_brorl.simulations import simulate


def main() -> int:
    """Exit code: 0 done, 2 a mistake in the input."""
    return simulate(sys.argv[1:], (__doc__ or "").strip())


if __name__ == "__main__":
    sys.exit(main())
