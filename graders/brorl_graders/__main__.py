"""Grade the rows of a JSON-lines file: `brorl-grade FILE.jsonl` writes a grade for each row."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from brorl_graders import __version__
from brorl_graders.base.errors import BroRLError
from brorl_graders.base.foreign import DIGITS, LARGE, inert, read_json
from brorl_graders.grading import SECONDS, Pool


def main() -> int:
    """Grade the responses in the rows of a JSON-lines file, and print a grade for each row.

    Returns 0, or 2 after a message about the first row that cannot be graded.
    """
    parser = argparse.ArgumentParser(prog="brorl-grade", description=__doc__)
    parser.add_argument(
        "file", type=Path, help='rows like {"verifier": "math", "payload": {"answer": "7"}, "response": …}'
    )
    parser.add_argument("--version", action="version", version=f"brorl-grade {__version__}")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"that one response may take (default {SECONDS:g})"
    )
    options = parser.parse_args()
    with Pool(options.seconds) as pool:
        for number, line in enumerate(options.file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = read_json(line, digits=DIGITS, most_bytes=LARGE)
                [one] = pool.grade(row["verifier"], row["payload"], [row["response"]])
            except (BroRLError, ValueError, KeyError, TypeError) as error:
                sys.stderr.write(inert(f"error: {options.file}, line {number}: {error}\n"))
                return 2
            read = {"answer": one.answer, "reference": one.reference}
            sys.stdout.write(json.dumps({**one._asdict(), **read}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
