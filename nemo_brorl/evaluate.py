"""`python -m nemo_brorl.evaluate policy.model=FOLDER [--config-name NAME] [KEY=VALUE ...]`: pass@1, pass@k, majority@k on benchmarks."""

from __future__ import annotations

import sys

from nemo_brorl.commands import run_command


def main() -> int:
    """Exit code: 0 done, 75 stopped in the middle to go on later, 2 a mistake in the input, 1 a bug."""
    return run_command("evaluate", __doc__, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
