"""Verdicts of the benchmarks' own checkers, in a process whose Python needs nothing of this repository.

    PYTHON official.py CHECKOUT < cases > verdicts

A case is a JSON line with `name`, `arguments` and `texts`. Its verdict is a JSON list with true, false or null for each
text; null means that the checker raised.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Read instruction-following cases from standard input, and print the official checkers' verdicts."""
    sys.path.insert(0, sys.argv[1])
    import_module("langdetect").DetectorFactory.seed = 0  # without a seed its verdicts vary
    registry = import_module("ifbench.instructions_registry")
    for line in sys.stdin:
        case = json.loads(line)
        checker = registry.INSTRUCTION_DICT[case["name"]](case["name"])
        checker.build_description(**case["arguments"])
        print(json.dumps([check_text(checker, text) for text in case["texts"]]), flush=True)


def check_text(checker: Any, text: str) -> bool | None:
    """Return whether the official checker of an instruction accepts a text, or None when the checker raises.

    An empty text follows no instruction.
    """
    if not text.strip():
        return False
    try:
        return bool(checker.check_following(text))
    except (IndexError, ValueError, TypeError):
        return None


if __name__ == "__main__":
    main()
