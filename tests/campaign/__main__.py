"""Seeded faults over a small real run: `python -m tests.campaign --faults 20 --seed 1`. Each run is resumed until it is
done, and its metrics are those of the undisturbed one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.campaign.campaign import disturbed, undisturbed
from tests.campaign.faults import KINDS, draw
from tests.campaign.jobs import JOBS, prepare


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 when all faults were survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="fault to begin with, where those before were tried")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no second fault begins after so many")
    parser.add_argument("--seed", type=int, default=0, help="another one draws others")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=(), help="draw these alone", metavar="KIND")
    parser.add_argument("--command", choices=JOBS, default="", help="disturb this one alone")
    options = parser.parse_args(arguments)
    faults = draw(options.faults, options.seed, options.kinds, options.command)
    ends_at = time.monotonic() + 60 * options.minutes
    num_done = num_wrong = 0
    with tempfile.TemporaryDirectory(prefix="brorl_campaign_") as scratch:
        prepare(Path(scratch))
        whole_s: dict[str, float] = {}
        for command in sorted({fault.command for fault in faults}):
            whole_s[command] = undisturbed(command, Path(scratch) / f"whole_{command}")
            say(f"{command}, undisturbed: {whole_s[command]:.0f} s")
        for number, fault in enumerate(faults[options.first - 1 :], start=options.first):
            if num_done and time.monotonic() > ends_at:
                break
            whole = Path(scratch) / f"whole_{fault.command}"
            outcome = disturbed(Path(scratch) / f"run_{number}", fault, whole, whole_s[fault.command])
            num_done += 1
            num_wrong += bool(outcome.wrong)
            if outcome.exits == [0]:  # the machine may have become idler
                whole_s[fault.command] = min(whole_s[fault.command], outcome.seconds)
            say(f"{number}/{options.faults} {outcome}")
    say(f"{num_done - num_wrong} of {num_done} faults were survived (seed {options.seed})")
    return 0 if num_done and not num_wrong else 1


def say(text: str) -> None:
    """Print a line at once: a campaign takes an hour."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
