"""Programs scored per second by the verifier `code`, in this checkout and another one, side by side in one run.

    nice python graders/bench/programs.py [--against FOLDER] [--programs 40] [--repeats 5]

FOLDER is a checkout of another revision (`git worktree add FOLDER REVISION`). All programs are right. Kinds of tests:
`print` reads and prints, `call` is one function call, `assertions` are three, `script` is a `check(candidate)` with
seven assertions, `pairs` one with 1,000 inputs and results (EvalPlus). The two checkouts take turns. Each time a new
process scores one program first, which is not counted. Figures are medians of the repeats in milliseconds a program,
and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
RESPONSE = "```python\ndef f(x):\n    return x * x\n```"
PRINTS = "```python\nprint(sum(map(int, input().split())))\n```"
SEVEN = "def check(candidate):\n" + "".join(f"    assert candidate({i}) == {i * i}\n" for i in range(7))
PAIRS = f"""
def check(candidate):
    inputs = {[[i] for i in range(1000)]}
    results = {[i * i for i in range(1000)]}
    for arguments, result in zip(inputs, results):
        assert candidate(*arguments) == result
"""
KINDS: dict[str, tuple[dict[str, object], str]] = {
    "print": ({"inputs": ["3 4"], "outputs": ["7"]}, PRINTS),
    "call": ({"inputs": [[3]], "outputs": [9], "fn_name": "f"}, RESPONSE),
    "assertions": ({"asserts": [f"assert f({i}) == {i * i}" for i in range(3)]}, RESPONSE),
    "script": ({"script": SEVEN, "entry_point": "f"}, RESPONSE),
    "pairs": ({"script": PAIRS, "entry_point": "f"}, RESPONSE),
}
SIDE = """
import json, sys, time
from brorl_graders.verifiers.code import code
tests, response, num = json.load(sys.stdin)
def score():
    assert code.score({"tests": tests}, response) == 1.0
score()
start = time.perf_counter()
for _ in range(num):
    score()
print((time.perf_counter() - start) / num)
code.close()
"""


def measure_seconds(folder: Path, kind: str, num: int) -> float:
    """Return the seconds in which the verifier `code` scores one program with tests of the kind `kind`.

    The verifier is that of the repository checkout in `folder`.
    """
    tests, response = KINDS[kind]
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'graders'}"}
    request = json.dumps([tests, response, num])
    command = [sys.executable, "-c", SIDE]
    process = subprocess.run(
        command,
        input=request,
        env=environment,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(process.stdout)


def main() -> None:
    """Measure how fast the verifier `code` scores programs in one or two checkouts of the repository.

    Prints the median time of a program for each kind of tests.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of another revision")
    parser.add_argument("--programs", type=int, default=40, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    sides = [HERE] if options.against is None else [options.against.resolve(), HERE]
    for kind in KINDS:
        milliseconds: dict[Path, list[float]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side in sides:
                milliseconds[side].append(1000 * measure_seconds(side, kind, options.programs))
        medians = [statistics.median(milliseconds[side]) for side in sides]
        figures = " against ".join(f"{median:.2f} ms" for median in reversed(medians))
        ratio = f", {medians[-1] / medians[0]:.2f} times" if options.against is not None else ""
        print(f"{kind:10} {figures}{ratio}", flush=True)


if __name__ == "__main__":
    main()
