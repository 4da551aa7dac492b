"""`python -m nemo_brorl.plateau RUN_FOLDER [--window K] [--patience K]`: where the plateau detector would have broadened a run."""

from __future__ import annotations

import sys

from nemo_brorl.report.plateau import run


def main() -> int:
    """Exit code: 0 done, 2 a mistake in the input."""
    return run(sys.argv[1:], (__doc__ or "").strip())


if __name__ == "__main__":
    sys.exit(main())
