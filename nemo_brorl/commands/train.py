"""`brorl train [--config-name NAME] [KEY=VALUE ...]`: a whole BroRL run."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.commands.run import run_command


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, or stopped for good on request; 75 saved, to go on later (SIGUSR1, the time limit); 2 a
    mistake in the input; 69 an engine or a rank was lost, the same command goes on from the last checkpoint; 1 a
    bug."""
    return run_command("train", __doc__, argv)
