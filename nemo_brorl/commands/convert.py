"""`brorl convert [--config-name NAME] [KEY=VALUE ...]`: the weights of a training checkpoint as a Hugging Face
folder."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.commands.run import run_command


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    return run_command("convert", __doc__, argv)
