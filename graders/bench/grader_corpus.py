"""Count wrong verdicts of verifiers on a corpus of answers whose truth is known.

    python graders/bench/grader_corpus.py maths [--cases N] [--pairs N] [--show N]
    python graders/bench/grader_corpus.py kinds [--cases N] [--seed N] [--show N] [--kinds "looked at"] [--kind NAME]

`maths` draws N right and N wrong responses from `graders/tests/support/math_corpus.py` with its seed and scores them
with the `math` verifier. `--pairs` also compares the verdicts that need no math-verify with those of math-verify and
with the truth.

`kinds` draws right and wrong responses of every kind in `graders/tests/support/grader_kinds.py`, and prints the wrong
verdicts by kind. A third of the older kinds is held out: it shows no example, and nobody mends a verifier by it.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from brorl_graders.verifiers import multiple_choice
from brorl_graders.verifiers.math import answer as maths
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.math.equality import USUAL, are_equal
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.reading import read

from graders.tests.support import grader_kinds, math_corpus


def count_wrong_verdicts(num: int, is_right: bool, num_shown: int) -> None:
    """Score right or wrong responses with the verifier `math`, and print how many got the wrong verdict, by kind."""
    total: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    start = time.process_time()
    for case in math_corpus.cases(num, is_right):
        total[case.kind] += 1
        if score({"answer": case.reference}, case.response) == float(is_right):
            continue
        missed[case.kind] += 1
        if missed[case.kind] <= num_shown:
            print(f"    {case.kind}: {case.reference!r} {case.response!r}")
    seconds = time.process_time() - start
    name = "right answers that earn nothing" if is_right else "wrong answers that earn"
    share = 100 * missed.total() / num
    print(f"{name}: {missed.total()} of {num} ({share:.2f} %), {seconds:.1f} CPU seconds")
    for kind, number in missed.most_common():
        print(f"    {kind}: {number} of {total[kind]}")


def compare_with_library(num: int, num_shown: int) -> None:
    """Compare verdicts on pairs of answers with and without the library math-verify, and print the differences.

    A pair is a reference answer and an answer to compare with it, without a response around them.
    """
    decided = 0
    differing: Counter[str] = Counter()
    wrong_here = wrong_there = 0
    for case in math_corpus.pairs(num):
        reference = in_one_notation(case.reference)
        answer = in_one_notation(case.response)
        reference_value = read(reference)
        answer_value = read(answer)
        verdict = None
        if reference_value is not None and answer_value is not None:
            verdict = are_equal(reference_value, answer_value, USUAL)
        if verdict is None:
            continue
        decided += 1
        by_library = equal_by_library(reference, answer)
        wrong_there += by_library != case.is_right
        if verdict != case.is_right:
            wrong_here += 1
            print(f"    wrong here: {case.reference!r} {case.response!r}")
        if verdict == by_library:
            continue
        kind = f"{case.kind}: {'equal' if verdict else 'different'} here, not there"
        differing[kind] += 1
        if differing[kind] <= num_shown:
            print(f"    {kind}: {case.reference!r} {case.response!r} (truth: {case.is_right})")
    print(f"pairs decided without math-verify: {decided} of {num}; {differing.total()} verdicts differ")
    print(f"against the truth: {wrong_here} wrong here, {wrong_there} wrong by math-verify")
    for kind, number in differing.most_common():
        print(f"    {kind}: {number}")


def count_by_kind(options: argparse.Namespace) -> None:
    """Print the wrong verdicts of each drawn kind of answers, and totals of looked-at and held-out kinds."""
    score_of = {"math": maths.score, "multiple_choice": multiple_choice.score}
    totals: Counter[str] = Counter()
    for kind in options.kind or grader_kinds.KINDS:
        is_held_out = grader_kinds.is_held_out(kind)
        group = "held out" if is_held_out else "looked at"
        if options.kinds not in ("all", group):
            continue
        for is_right in (True, False):
            drawn = grader_kinds.cases(kind, options.cases, is_right, options.seed)
            missed = [case for case in drawn if score_of[case.verifier](case.payload, case.response) != float(is_right)]
            fault = "right answers that earn nothing" if is_right else "wrong answers that earn"
            totals[f"{group}: {fault}"] += len(missed)
            totals[f"{group}: drawn {'right' if is_right else 'wrong'} answers"] += options.cases
            if missed:
                print(f"{group}, {kind}: {fault}: {len(missed)} of {options.cases}")
            for case in [] if is_held_out else missed[: options.show]:
                print(f"    {case.payload['answer']!r} {case.response!r}")
    for name, number in sorted(totals.items()):
        print(f"{name}: {number}")


def main() -> None:
    """Count and print the wrong verdicts of the verifiers on right and on wrong responses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maths = commands.add_parser("maths")
    maths.add_argument("--cases", type=int, default=10_000)
    maths.add_argument("--pairs", type=int, default=0)
    maths.add_argument("--show", type=int, default=0, help="examples of each kind")
    kinds = commands.add_parser("kinds")
    kinds.add_argument("--cases", type=int, default=200, help="right and wrong responses of each kind")
    kinds.add_argument("--seed", type=int, default=1)
    kinds.add_argument("--show", type=int, default=0, help="examples of each kind that is not held out")
    kinds.add_argument("--kinds", choices=("all", "held out", "looked at"), default="all")
    kinds.add_argument("--kind", action="append", help="only this kind; may be repeated")
    options = parser.parse_args()
    if options.command == "kinds":
        count_by_kind(options)
        return
    for is_right in (True, False):
        count_wrong_verdicts(options.cases, is_right, options.show)
    if options.pairs:
        compare_with_library(options.pairs, options.show)


if __name__ == "__main__":
    main()
