"""Compare our verdicts on IFEval's and IFBench's instructions with the official checkers', on responses drawn by seed.

    python -m graders.bench.instructions CHECKOUT --python PYTHON [--responses N] [--seed N] [--show N]

CHECKOUT is a clone of allenai/IFBench, which has IFEval's checkers too. PYTHON is an interpreter with nltk and its
punkt_tab, langdetect, immutabledict, emoji, syllapy and absl-py. `--said FILE --asked FILE` compares verdicts on real
responses instead: rows of `prompt` and `response`, and the benchmark's file of prompts. `named.py` lists the
differences that are intended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from brorl_graders.verifiers.ifeval.instruction_following import CONSTRAINTS, INSTRUCTIONS, score, versions

from graders.bench.instructions import ifbench_forms, ifbench_words, ifeval, official
from graders.bench.instructions.named import PAID, ZERO, find_reason
from graders.bench.instructions.prose import GENERIC, dress_up

BUILDERS = {**ifeval.BUILDERS, **ifbench_words.BUILDERS, **ifbench_forms.BUILDERS}


class InstructionCase(NamedTuple):
    """One response of a model to one instruction of a benchmark."""

    name: str
    arguments: dict[str, Any]
    response: str
    is_generic: bool = False  # the response was written for no instruction


class CheckedCase(NamedTuple):
    """Our verdict and the official one on a response to an instruction."""

    case: InstructionCase
    judging: str
    ours: bool
    official: bool


def draw_cases(per_type: int, seed: int) -> Iterator[InstructionCase]:
    """Draw random responses to every instruction of the benchmarks IFEval and IFBench.

    One response in eight is written for no instruction. Half of the responses get a random form, such as a code block.
    """
    for name, build in BUILDERS.items():
        draw = Random(f"{seed} {name}")
        for number in range(per_type):
            arguments, response = build(draw)
            is_generic = number % 8 == 7
            if is_generic:
                response = draw.choice(GENERIC)
            yield InstructionCase(name, arguments, dress_up(draw, response), is_generic)


def read_cases(said: Path, asked: Path) -> Iterator[InstructionCase]:
    """Yield a case for each instruction in a benchmark's prompts, with a real response to the prompt."""
    responses = {}
    for line in said.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        responses[row["prompt"].strip()] = row["response"]
    for line in asked.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            arguments = {key: value for key, value in given.items() if value is not None}
            integral = {key: int(value) if isinstance(value, float) else value for key, value in arguments.items()}
            if name in INSTRUCTIONS and row["prompt"].strip() in responses:
                yield InstructionCase(name, integral, responses[row["prompt"].strip()])


def check_cases(cases: list[InstructionCase], python: str, checkout: str) -> Iterator[CheckedCase]:
    """Yield this package's verdict and the official checker's on every instruction-following case, strict and loose.

    A case on which the official checker raises is printed and skipped.
    """
    lines = []
    for case in cases:
        texts = list(dict.fromkeys([case.response, *versions(case.response)]))
        lines.append(json.dumps({"name": case.name, "arguments": case.arguments, "texts": texts}))
    command = [python, str(official.__file__), checkout]
    answers = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    for case, line in zip(cases, answers.stdout.splitlines(), strict=True):
        theirs = json.loads(line)
        if theirs[0] is None:
            print(f"their checker raised: {case.name} {case.response[:80]!r}")
            continue
        payload = {"instruction_id_list": [case.name], "kwargs": [case.arguments]}
        for judging, followed in (("strict", theirs[0]), ("loose", any(theirs))):
            ours, _ = score({**payload, "judging": judging}, case.response)
            yield CheckedCase(case, judging, ours == 1.0, followed)


def print_table(checked: list[CheckedCase], num_shown: int) -> None:
    """Print where this package's verdicts on instruction following differ from the official ones, by benchmark.

    Also prints how many of the differences are not intended.
    """
    for title, is_ifeval in (("IFEval", True), ("IFBench", False)):
        for judging in ("strict", "loose"):
            same_benchmark = [
                item for item in checked if item.judging == judging and (item.case.name in CONSTRAINTS) == is_ifeval
            ]
            followed = [item for item in same_benchmark if item.official]
            others = [item for item in same_benchmark if not item.official]
            print(f"{title}, {judging}: {len(followed)} responses follow officially, {len(others)} do not")
            print_disagreements(ZERO, judging, [item.case for item in followed if not item.ours], num_shown)
            print_disagreements(PAID, judging, [item.case for item in others if item.ours], num_shown)


def print_disagreements(kind: str, judging: str, cases: list[InstructionCase], num_shown: int) -> None:
    """Print the cases of one kind in which this package and an instruction's official checker disagree.

    Intended disagreements are counted by reason, and the others are listed by instruction with examples.
    """
    meant: Counter[str] = Counter()
    others: dict[str, list[InstructionCase]] = {}
    for case in cases:
        why = find_reason(kind, judging, case.name, case.response, case.is_generic)
        if why is not None:
            meant[f"{case.name.partition(':')[0]}: {why}"] += 1
        else:
            others.setdefault(case.name, []).append(case)
    print(f"    {kind}: {len(cases)}, of which {meant.total()} are meant")
    for why, count in meant.most_common():
        print(f"        {count} {why}")
    for name, unintended in others.items():
        print(f"        not meant: {len(unintended)} {name}")
        for case in unintended[:num_shown]:
            print(f"            {case.arguments} {case.response[:600]!r}")


def main() -> None:
    """Compare this package's verdicts on instruction following with the official checkers', and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--python", default="python")
    parser.add_argument("--responses", type=int, default=100, help="of each type")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--show", type=int, default=0, help="examples of each type that disagrees")
    parser.add_argument("--only", default="", help="types whose name has this")
    parser.add_argument("--said", type=Path)
    parser.add_argument("--asked", type=Path)
    options = parser.parse_args()
    cases = list(draw_cases(options.responses, options.seed))
    if options.said:
        cases = list(read_cases(options.said, options.asked))
    chosen = [case for case in cases if options.only in case.name]
    print_table(list(check_cases(chosen, options.python, options.checkout)), options.show)


if __name__ == "__main__":
    main()
