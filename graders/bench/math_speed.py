"""Mathematical answers scored per CPU second, in this checkout and another one, in one run.

    python graders/bench/math_speed.py [--old FOLDER] [--library] [--answers N] [--repeats N]

All pairs of reference and answer differ, so no cached verdict is used, but for `repeated`. Kinds: `plain` has numbers,
fractions, roots and intervals in a box, a third of them right. `stated` has the same values after "the answer is".
`symbolic` has polynomials, and the right ones need sympy. `repeated` has one reference and 21 different answers. Each
measurement has its own process, and the checkouts take turns, with math-verify as it comes where `--library` asks.
`bench/verifiers.py` prints these figures too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
MEASURE = """
import json, sys, time
from brorl_graders.verifiers.math import answer
answer.load()
pairs = json.load(open(sys.argv[1]))
start = time.process_time()
earned = 0.0
for reference, response in pairs:
    earned += answer.score({"answer": reference}, response)
print(json.dumps([time.process_time() - start, earned / len(pairs)]))
"""
MEASURE_LIBRARY = """
import json, logging, sys, time
from math_verify import parse, verify
logging.disable(logging.WARNING)
parse("$1$")
pairs = json.load(open(sys.argv[1]))
start = time.process_time()
earned = 0.0
for reference, response in pairs:
    earned += verify(parse(f"${reference}$"), parse(response))
print(json.dumps([time.process_time() - start, earned / len(pairs)]))
"""
LIBRARY = "math-verify"
NUM_DIFFERENT = 21  # answers to one prompt
Pair = tuple[str, str]


def plain_answer(kind: int, rng: Random) -> tuple[str, str, str]:
    """Draw a random number, fraction, root or interval: (reference, equal answer in another form, different answer)."""
    a, b, c = rng.randint(2, 9999), rng.randint(2, 9999), rng.randint(101, 9999)
    if kind == 0:
        return f"{a * c}", f"{a * c:,}", f"{a * c + b}"
    if kind == 1:
        return f"\\frac{{{a}}}{{{c}}}", f"\\dfrac{{{2 * a}}}{{{2 * c}}}", f"\\frac{{{a + b}}}{{{c}}}"
    if kind == 2:
        return f"{a}\\sqrt{{{c}}}+{b}", f"{b}+\\sqrt{{{c}}}\\cdot {a}", f"{a + 1}\\sqrt{{{c}}}"
    return f"({a}, {a + b}]", f"\\left({a}, {a + b}\\right]", f"[{a}, {a + b})"


def symbolic_answer(rng: Random) -> tuple[str, str, str]:
    """Draw a random polynomial: (reference, equal polynomial in another form, different polynomial)."""
    a, b = rng.randint(2, 9999), rng.randint(2, 9999)
    return f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})", f"(x+{a})(x-{b})"


def make_pairs(name: str, num: int) -> list[Pair]:
    """Draw `num` random pairs of a reference answer and a response, with answers of the kind `name`."""
    if name == "repeated":
        several = make_pairs("plain", NUM_DIFFERENT)
        return [(several[0][0], several[number % NUM_DIFFERENT][1]) for number in range(num)]
    rng = Random(f"speed of {name}")
    pairs = []
    for number in range(num):
        reference, same, other = symbolic_answer(rng) if name == "symbolic" else plain_answer(number % 4, rng)
        answer = same if number % 3 == 0 else other
        statement = f"so the answer is ${answer}$." if name == "stated" else f"so that it is \\boxed{{{answer}}}."
        pairs.append((reference, f"We add {number} and find $y={rng.randint(0, 999)}$, {statement}"))
    return pairs


def measure(pairs: Path, folder: Path, program: str = MEASURE) -> tuple[float, float]:
    """Score pairs of a reference answer and a response with the repository checkout in `folder`, or with `program`.

    `pairs` is the file that holds the pairs. Returns (CPU seconds, mean reward).
    """
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'graders'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(pairs)]
    printed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    seconds, mean = json.loads(printed)
    return seconds, mean


def compare(old: Path | None, num: int, repeats: int, with_library: bool = False) -> dict[str, dict[str, float]]:
    """Return how many mathematical answers two checkouts of the repository score per CPU second, and the ratio.

    The figures are medians, by kind of answers. Without `old`, the folder of the older checkout, only the checkout
    that holds this script is measured.
    """
    folders = {"new": ROOT}
    if old is not None:
        folders["old"] = old.resolve()
    if with_library:
        folders[LIBRARY] = ROOT
    result = {}
    for name, size in (("plain", num), ("stated", num), ("symbolic", max(num // 10, 1)), ("repeated", 2 * num)):
        result[name] = compare_kind(name, size, folders, repeats)
    return result


def compare_kind(name: str, num: int, folders: dict[str, Path], repeats: int) -> dict[str, float]:
    """Return how many mathematical answers of one kind each checkout of the repository scores per CPU second.

    Also returns the mean rewards, and the ratio of the new checkout to the old one.
    """
    seconds: dict[str, list[float]] = {version: [] for version in folders}
    row = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "pairs.json"
        path.write_text(json.dumps(make_pairs(name, num)))
        for version in list(folders) * repeats:
            program = MEASURE_LIBRARY if version == LIBRARY else MEASURE
            measured, row[f"mean_reward_{version}"] = measure(path, folders[version], program)
            seconds[version].append(measured)
    for version, seconds_by_repeat in seconds.items():
        row[version] = num / statistics.median(seconds_by_repeat)
    if "old" in row:
        row["ratio"] = row["new"] / row["old"]
    return row


def print_comparison(result: dict[str, dict[str, float]]) -> None:
    """Print how many mathematical answers are scored per CPU second, one line for each kind of answers."""
    print("different mathematical answers per CPU second, medians")
    for name, row in result.items():
        line = "  ".join(f"{key} {value:.3g}" for key, value in row.items())
        print(f"  {name:10s} {line}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure how many answers the verifier `math` scores per CPU second in one or two checkouts.

    Prints the comparison for each kind of answers.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="folder of another checkout")
    parser.add_argument("--library", action="store_true", help="measure math-verify on the same answers, too")
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    print_comparison(compare(options.old, options.answers, options.repeats, options.library))


if __name__ == "__main__":
    main()
