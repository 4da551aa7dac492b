"""Verdicts of the benchmarks' own checkers, in a process of their Python, which needs none of this repository.

    PYTHON official.py CHECKOUT < cases > verdicts

A case is a line of JSON (`name`, `arguments`, `texts`); its verdict a list with true, false or null (the checker
raised) for each text.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Judge every line."""
    sys.path.insert(0, sys.argv[1])
    import_module("langdetect").DetectorFactory.seed = 0  # its verdicts are drawn otherwise
    registry = import_module("ifbench.instructions_registry")
    for line in sys.stdin:
        case = json.loads(line)
        checker = registry.INSTRUCTION_DICT[case["name"]](case["name"])
        checker.build_description(**case["arguments"])
        print(json.dumps([check_text(checker, text) for text in case["texts"]]), flush=True)


def check_text(checker: Any, text: str) -> bool | None:
    """Whether one text follows an instruction; an empty one follows none."""
    if not text.strip():
        return False
    try:
        return bool(checker.check_following(text))
    except (IndexError, ValueError, TypeError):
        return None


if __name__ == "__main__":
    main()
