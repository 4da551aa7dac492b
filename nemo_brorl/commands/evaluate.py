"""`brorl evaluate policy.model=FOLDER [--config-name NAME] [KEY=VALUE ...]`: pass@1, pass@k, majority@k on
benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.commands.run import run_command


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 75 stopped in the middle to go on later, 2 a mistake in the input, 1 a bug."""
    return run_command("evaluate", __doc__, argv)
