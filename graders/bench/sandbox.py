"""Test runs per second of the code sandbox, with one sandbox and with several side by side.

    nice python graders/bench/sandbox.py [--runs 300] [--repeats 5] [--sandboxes 2] [--without mount,pid] [--json FILE]

Kinds of programs: `print` reads two numbers and prints their sum, in a new process for each test. `call` is one
function call in a new process. `calls` has 20 calls in one process and counts as 20 tests (`isolation: program`).
`solution` is a program of 60 lines with imports, classes and recursion. Each figure is the median of the repeats, with
the lowest and the highest. A run with a wrong result ends the script with an error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from brorl_graders.sandbox.sandbox import Sandbox, SandboxProgram, SandboxResult

TOGETHER = 20
ADD = "def add(a, b):\n    return a + b\n"
SOLUTION = (
    "import sys, heapq\nfrom collections import defaultdict, deque\nfrom dataclasses import dataclass\nfrom "
    "functools import lru_cache\n"
    + "".join(
        f"@dataclass\nclass Node{i}:\n    value: int\n    def cost(self): return self.value * {i}\n" for i in range(12)
    )
    + "@lru_cache(None)\ndef ways(n): return n if n < 2 else ways(n - 1) + ways(n - 2)\nn = "
    "int(sys.stdin.readline())\nprint(ways(n))\n"
)
# The program of each name, how many tests are in it, and whether a run of it passed.
KINDS: dict[str, tuple[SandboxProgram, int, Callable[[SandboxResult], bool]]] = {
    "print": (
        SandboxProgram("print(sum(map(int, input().split())))", stdin="3 4\n"),
        1,
        lambda result: result.printed == "7\n",
    ),
    "call": (
        SandboxProgram(ADD, "call", name="add", tests=[[3, 4]]),
        1,
        lambda result: result.reports == [["value", 7, 0]],
    ),
    "calls": (
        SandboxProgram(ADD, "call", name="add", tests=[[3, 4]] * TOGETHER),
        TOGETHER,
        lambda result: len(result.reports) == TOGETHER,
    ),
    "solution": (SandboxProgram(SOLUTION, stdin="50\n"), 1, lambda result: result.printed == "12586269025\n"),
}


def measure_rate(sandboxes: list[Sandbox], kind: str, num_tests: int) -> float:
    """Return how many tests per second these code sandboxes run together, each sandbox in its own thread."""
    program, tests_in_program, passes = KINDS[kind]
    num_runs = max(1, num_tests // tests_in_program)

    def work(sandbox: Sandbox) -> bool:
        return all([passes(sandbox.run(program)) for _ in range(num_runs)])

    start = time.perf_counter()
    with ThreadPoolExecutor(len(sandboxes)) as pool:
        is_right = list(pool.map(work, sandboxes))
    if not all(is_right):
        raise SystemExit(f"{kind}: a run did not come out right")
    return len(sandboxes) * num_runs * tests_in_program / (time.perf_counter() - start)


def main() -> None:
    """Measure how many tests the code sandbox runs per second, for several kinds of programs, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="tests of each repeat and sandbox")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sandboxes", type=int, default=2, help="the largest number side by side")
    parser.add_argument("--without", default="", help="layers to leave out, with commas")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    without = tuple(filter(None, options.without.split(",")))
    start = time.perf_counter()
    sandboxes = [Sandbox(without=without) for _ in range(options.sandboxes)]
    print(f"{sandboxes[0].layers}; started in {(time.perf_counter() - start) / len(sandboxes):.2f} s each", flush=True)
    rows: list[dict[str, Any]] = []
    for num in sorted({1, options.sandboxes}):
        for kind in KINDS:
            measure_rate(sandboxes[:num], kind, options.runs // 10)
            rates = [measure_rate(sandboxes[:num], kind, options.runs) for _ in range(options.repeats)]
            rows.append(
                {
                    "sandboxes": num,
                    "kind": kind,
                    "median": statistics.median(rates),
                    "low": min(rates),
                    "high": max(rates),
                }
            )
            row = rows[-1]
            print(
                f"{num} sandbox(es) {kind:9} {row['median']:8.0f} tests/s ({row['low']:.0f} to {row['high']:.0f})",
                flush=True,
            )
    for sandbox in sandboxes:
        sandbox.close()
    if options.json:
        options.json.write_text(json.dumps({"layers": str(sandboxes[0].layers), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
