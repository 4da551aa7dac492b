"""`python -m nemo_brorl.plan [--config-name NAME] [OPTIONS] [KEY=VALUE ...]`: does a run fit, how long is a step, what would be better."""

from __future__ import annotations

import sys

from launcher.plan import main as plan


def main() -> int:
    """Exit code: 0 it fits, 2 it does not, or a mistake in the input."""
    return plan(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
