"""Many hostile inputs, as a night has time for: `python -m tests.fuzz --examples 10000 --seed 0`. What follows is
pytest's, as `-k settings`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz.profile import EXAMPLES, SEED


def main(arguments: Sequence[str]) -> int:
    """Exit code of pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000, help="of all tests together")
    parser.add_argument("--seed", type=int, default=0, help="another one draws others")
    options, others = parser.parse_known_args(arguments)
    os.environ[EXAMPLES] = str(options.examples)
    os.environ[SEED] = str(options.seed)
    folder = str(Path(__file__).parent)
    seed = f"--hypothesis-seed={options.seed}"
    return int(pytest.main([folder, "-q", "-p", "no:cacheprovider", "--hypothesis-show-statistics", seed, *others]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
