"""`brorl sft [--config-name NAME] [KEY=VALUE ...]`: warm up a small base model on generated demonstrations."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.commands.run import run_command


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done or cached, 2 a mistake in the input, 1 a bug."""
    return run_command("sft", __doc__, argv)
