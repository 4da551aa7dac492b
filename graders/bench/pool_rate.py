"""Measure how many responses a second a pool grades with one process and with two.

    python -m graders.bench.pool_rate [--responses N] [--repeats N]

All responses to a prompt differ. `symbolic` ones are equal polynomials, which sympy compares, `plain` ones numbers. The
figures are medians, and the pools take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from brorl_graders import Pool

PROMPTS: dict[str, tuple[str, Callable[[int], str]]] = {
    "symbolic": ("(x+23)(x+95)", lambda number: f"It is \\boxed{{x^2+{number + 118}x-{number}x+2185}}."),
    "plain": ("\\frac{1}{3}", lambda number: f"It is \\boxed{{\\frac{{{number}}}{{{3 * number + 1}}}}}."),
}


def rate_of(pool: Pool, reference: str, responses: list[str]) -> float:
    """Grade responses to one prompt, and return how many a second of wall time."""
    start = time.perf_counter()
    grades = pool.grade("math", {"answer": reference}, responses)
    assert not any(one.failed for one in grades)
    return len(responses) / (time.perf_counter() - start)


def rates_of(kind: str, number: int, repeats: int, pools: Sequence[Pool]) -> list[float]:
    """Return the median rate of each pool on responses of a kind, after a round that does not count."""
    reference, make = PROMPTS[kind]
    rounds = []
    for repeat in range(repeats + 1):
        responses = [make(repeat * number + index) for index in range(1, number + 1)]
        rounds.append([rate_of(pool, reference, responses) for pool in pools])
    return [statistics.median(rates) for rates in zip(*rounds[1:], strict=True)]


def main() -> None:
    """Print the rates of both pools and their quotient, for both kinds of responses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with Pool(processes=1) as one, Pool(processes=2) as two:
        for kind, times in (("symbolic", 1), ("plain", 16)):
            first, second = rates_of(kind, times * options.responses, options.repeats, (one, two))
            print(f"{kind}: {first:,.0f} a second with one process, {second:,.0f} with two: {second / first:.2f} times")


if __name__ == "__main__":
    main()
