"""`python -m nemo_brorl.convert [--config-name NAME] [KEY=VALUE ...]`: the weights of a training checkpoint as a Hugging Face folder."""

from __future__ import annotations

import sys

from nemo_brorl.commands import run_command


def main() -> int:
    """Exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    return run_command("convert", __doc__, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
