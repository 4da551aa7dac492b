"""`python -m nemo_brorl.train [--config-name NAME] [KEY=VALUE ...]`: a whole BroRL run."""

from __future__ import annotations

import sys

from nemo_brorl.commands import run_command


def main() -> int:
    """Exit code: 0 done or stopped on request, 2 a mistake in the input, 1 a bug."""
    return run_command("train", __doc__, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
