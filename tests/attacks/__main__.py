"""Many attacks: `python -m tests.attacks --count 10000 --seed 0`.

Prints each attack that got what it must not, in full for the first few of a kind, then how many there were by family of
cases and kind. The exit code is 1 when there were any. `--only` keeps to some families, and `--attack` tries one as it
was printed. `--moves` tries those drawn attacks that have a move whose name begins so, and `--stop` ends at the first
that gets what it must not: the number of its seed is how many draws it took. `--jobs` shares the seeds out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import brorl_graders

from tests.attacks.generator import FAMILIES, Attack, draw, find_case, kept_attacks
from tests.attacks.trial import Arena, is_refused, report

SHOWN_IN_FULL = 2  # of each family and kind
PROGRESS = 100  # attacks between two lines that say how far it is


def main(arguments: Sequence[str]) -> int:
    """Try attacks; the exit code."""
    options = _parser().parse_args(arguments)
    others = _fork(options)
    # Without the right PYTHONPATH it would be those of another revision.
    print(f"attacks on {os.path.dirname(brorl_graders.__file__)}", flush=True)
    found: Counter[tuple[str, str]] = Counter()
    refused: Counter[str] = Counter()
    num_tried = num_bad = 0
    started = time.monotonic()
    with Arena() as arena:
        for label, attack in _attacks(options):
            if is_refused(attack.case):
                refused[find_case(attack.case).family] += 1
                continue
            num_tried += 1
            violations = arena.try_attack(attack)
            num_bad += bool(violations)
            family = find_case(attack.case).family
            kinds = {violation.kind for violation in violations}
            if kinds:
                is_new = any(found[family, kind] < SHOWN_IN_FULL for kind in kinds)
                said = report(attack, violations) if is_new else f"{attack}: {', '.join(sorted(kinds))}"
                print(f"--- {label}: {said}", flush=True)
            found.update((family, kind) for kind in kinds)
            if num_tried % PROGRESS == 0:
                print(f"{num_tried} tried, {num_bad} with violations", flush=True)
            if kinds and options.stop:
                break
    seconds = time.monotonic() - started
    print(
        f"\n{num_tried} attacks in {seconds:.0f} s, {num_bad} with violations, {arena.num_overdue} deadlines met, "
        f"{arena.num_waiting} with an honest response that was late and is right in more time"
    )
    for (family, kind), count in sorted(found.items()):
        print(f"{count:6} {kind:8} {family}")
    for family, count in sorted(refused.items()):
        print(f"{count:6} not tried, since such tests are refused when data is loaded: {family}")
    codes = [os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) for other in others]
    return int(num_bad > 0 or any(codes))


def _fork(options: argparse.Namespace) -> list[int]:
    """Fork this process once for each other job, and share the seeds out. Returns the processes of the others."""
    seeds = range(options.seed, options.seed + options.count)
    others: list[int] = []
    for job in range(1, options.jobs):
        options.seeds = seeds[job :: options.jobs]
        others.append(os.fork())
        if others[-1] == 0:
            return []
    options.seeds = seeds[:: options.jobs]
    return others


def _attacks(options: argparse.Namespace) -> Iterator[tuple[str, Attack]]:
    if options.attack:
        yield "given", Attack.parse(options.attack)
        return
    families = FAMILIES
    if options.only:
        families = {family: FAMILIES[family] for family in options.only}
    elif not options.moves:
        for attack in kept_attacks():
            yield "kept", attack
    for seed in options.seeds:
        attack = draw(seed, families)
        if not options.moves or any(move.startswith(tuple(options.moves)) for move in attack.moves):
            yield f"seed {seed}", attack


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="attacks that are drawn")
    parser.add_argument("--seed", type=int, default=0, help="number of the first")
    parser.add_argument("--only", nargs="*", choices=sorted(FAMILIES), help="families of cases")
    parser.add_argument("--moves", nargs="*", help="how the names of moves begin, one of which an attack has")
    parser.add_argument("--stop", action="store_true", help="end at the first that gets what it must not")
    parser.add_argument("--jobs", type=int, default=1, help="processes that try attacks at the same time")
    parser.add_argument("--attack", help="one attack, as it was printed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
