"""`python -m nemo_brorl.sft [--config-name NAME] [KEY=VALUE ...]`: warm up a small base model on generated demonstrations."""

from __future__ import annotations

import sys

from nemo_brorl.commands import run_command


def main() -> int:
    """Exit code: 0 done or cached, 2 a mistake in the input, 1 a bug."""
    return run_command("sft", __doc__, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
