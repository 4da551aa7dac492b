"""Score the same mathematical answers by these graders, math-verify, TRL's reward function and verl's own code.

    pip install --no-deps --target FOLDER trl==1.16.0 verl==0.9.1 pylatexenc
    python -m graders.bench.beside_others FOLDER [--cases N] [--seeds 1 2 3]

Each seed draws N right and N wrong responses from `graders/tests/support/math_corpus.py`, which this project made. Each
grader has a process of its own. The figures are medians over the seeds. verl's `math_reward` wants a box, and
`math_dapo` the words "Answer:", which counts here too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from graders.tests.support import math_corpus

Score = Callable[[str, str], float]  # reference and response give a score
GRADERS = (
    "brorl_graders",
    "math-verify",
    "trl",
    "verl math_verify",
    "verl prime_math",
    "verl math_reward",
    "verl math_dapo",
)


def module_of(folder: Path, name: str) -> ModuleType:
    """Import a module of a package in a folder without the packages around it, which would import torch and Ray."""
    parts = name.split(".")
    for number in range(1, len(parts)):
        package = ".".join(parts[:number])
        around = ModuleType(package)
        around.__path__ = [str(folder.joinpath(*parts[:number]))]
        sys.modules.setdefault(package, around)
    return import_module(name)


def score_of(grader: str, folder: Path) -> Score:
    """Return the function by which a grader scores a response."""
    if grader == "brorl_graders":
        from brorl_graders.verifiers.math.answer import load, score

        load()
        return lambda reference, response: score({"answer": reference}, response)
    if grader == "math-verify":
        from math_verify import parse, verify

        return lambda reference, response: float(verify(parse(f"${reference}$"), parse(response)))
    if grader == "trl":
        reward = module_of(folder, "trl.rewards.accuracy_rewards").accuracy_reward
        return lambda reference, response: reward([[{"content": response}]], [f"${reference}$"])[0] or 0.0
    name = grader.removeprefix("verl ")
    module = module_of(folder, f"verl.utils.reward_score.{name}")
    if name == "math_verify":
        # Its public function does this in a process whose CPU time would not count
        verify_here = module._verify_in_subprocess  # noqa: SLF001
        return lambda reference, response: verify_here(f"\\boxed{{{reference}}}", response)
    if name == "prime_math":
        return lambda reference, response: float(module.compute_score(response, reference)[0])
    if name == "math_dapo":
        return lambda reference, response: float(module.compute_score(response, reference)["acc"])
    return lambda reference, response: float(module.compute_score(response, reference))


def measure(grader: str, folder: Path, num: int, seed: int) -> tuple[float, float, float]:
    """Return % of right responses that earn nothing, % of wrong ones that earn, and responses a CPU second."""
    score = score_of(grader, folder)
    cases = [*math_corpus.cases(num, True, seed), *math_corpus.cases(num, False, seed)]
    score(cases[0].reference, cases[0].response)
    earned: dict[bool, int] = {True: 0, False: 0}
    start = time.process_time()
    for case in cases:
        try:
            earned[case.is_right] += score(case.reference, case.response) >= 1
        except Exception as error:  # noqa: BLE001
            print(f"{grader}: {type(error).__name__}: {error}", file=sys.stderr)
    seconds = time.process_time() - start
    return 100 * (num - earned[True]) / num, 100 * earned[False] / num, len(cases) / seconds


def main() -> None:
    """Print a table of the graders, or the figures of one grader as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--grader", choices=GRADERS)
    options = parser.parse_args()
    if options.grader:
        sys.path.append(str(options.folder))
        print(json.dumps(measure(options.grader, options.folder, options.cases, options.seeds[0])))
        return
    for package in ("brorl-graders", "math-verify", "latex2sympy2-extended", "sympy"):
        print(f"{package} {version(package)}")
    print("| grader | right, earn 0 | wrong, earn | a CPU second |\n|---|---:|---:|---:|")
    for grader in GRADERS:
        found = []
        for seed in options.seeds:
            arguments = [str(options.folder), "--grader", grader, "--cases", str(options.cases), "--seeds", str(seed)]
            command = [sys.executable, "-m", "graders.bench.beside_others", *arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
        lost, earned, rate = map(statistics.median, zip(*found, strict=True))
        print(f"| {grader} | {lost:.1f} % | {earned:.1f} % | {rate:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
