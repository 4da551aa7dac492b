"""Attacks by number: what a policy would find if it searched for rewards instead of answers.

An attack is a case, a place in the response, one to three moves, and a spy that is scored behind others' responses. A
seed draws those names; the response follows from the names alone, so a line of `kept_attacks.txt` stays the same attack
when moves are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from tests.attacks import claims, program_moves
from tests.attacks.cases import FORM, PROGRAM, Case
from tests.attacks.code_cases import code_cases, gated_cases
from tests.attacks.layouts import LAYOUTS
from tests.attacks.task_cases import FAMILY as TASKS
from tests.attacks.task_cases import task_case, task_names
from tests.attacks.text_cases import text_cases

KEPT = Path(__file__).with_name("kept_attacks.txt")
MAX_MOVES = 3
SEPARATOR = " | "
BETWEEN_MOVES = "; "
# Family -> weight of a draw; a kind of test of programs is a family.
FAMILIES: dict[str, float] = {
    **dict.fromkeys(LAYOUTS, 1.0),
    TASKS: 4.0,
    "math": 2.5,
    "multiple_choice": 1.0,
    "exact_match": 0.5,
    "instruction_following": 0.5,
    "format": 1.0,
    "composite": 1.0,
}


@dataclass(frozen=True)
class Attack:
    """A response that tries to earn without solving, and a spy, by the names of their parts."""

    case: str
    place: str
    moves: tuple[str, ...]  # of programs `group: name`; of texts the same
    spy: str

    def __str__(self) -> str:
        return SEPARATOR.join([self.case, self.place, BETWEEN_MOVES.join(self.moves), self.spy])

    @classmethod
    def parse(cls, line: str) -> Attack:
        """The attack that `str` has written."""
        case, place, moves, spy = line.split(SEPARATOR)
        return cls(case, place, tuple(moves.split(BETWEEN_MOVES)), spy)

    @property
    def names_the_truth(self) -> bool:
        """Whether the right answer stands in it, beside another."""
        return any(move.startswith("hedge: ") for move in self.moves)


@cache
def _written_cases() -> Mapping[str, Case]:
    return {case.name: case for case in (*code_cases(), *gated_cases(), *text_cases())}


@cache
def find_case(name: str) -> Case:
    """The case of this name. Raises KeyError."""
    family, _, task = name.partition("/")
    if family != TASKS:
        return _written_cases()[name]
    case = task_case(task)
    if case is None:
        raise KeyError(name)
    return case


def case_names(family: str) -> Sequence[str]:
    """All cases of a family."""
    if family == TASKS:
        return [f"{TASKS}/{task}" for task in task_names()]
    return [name for name, case in _written_cases().items() if case.family == family]


def draw(seed: int, families: Mapping[str, float] = FAMILIES) -> Attack:
    """The attack of this number."""
    random = Random(f"attack/{seed}")
    (family,) = random.choices(list(families), weights=list(families.values()))
    case = None
    while case is None:
        case = _drawn_case(family, random)
    if case.material == PROGRAM:
        return _program_attack(case, random)
    return _text_attack(case, random)


def response(attack: Attack) -> str:
    """What the policy says; words in capitals are still to be filled in."""
    case = find_case(attack.case)
    if case.material == PROGRAM:
        return program_moves.PLACES[attack.place](program_moves.program(case, attack.moves))
    parts = [_claim(case, move) for move in attack.moves]
    return _text_places(case)[attack.place](" ".join(parts))


def spy_response(attack: Attack) -> str:
    """A response that looks for what others have answered."""
    case = find_case(attack.case)
    if case.material == PROGRAM:
        return program_moves.PLACES[place_asked_for(case)](program_moves.program(case, [attack.spy]))
    place = _text_places(case)[attack.place if case.material == FORM else "tags"]
    return place(_claim(case, attack.spy))


def place_asked_for(case: Case) -> str:
    """Where a program is looked for."""
    return "block in tags" if case.verifier == "composite" else "block"


def kept_attacks() -> list[Attack]:
    """Attacks that have earned something once."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return [Attack.parse(line) for line in lines if line and not line.startswith("#")]


def _drawn_case(family: str, random: Random) -> Case | None:
    name = random.choice(case_names(family))
    try:
        return find_case(name)
    except KeyError:  # a task without an answer to show
        return None


def _program_attack(case: Case, random: Random) -> Attack:
    all_moves = program_moves.MOVES
    weights = [program_moves.WEIGHTS.get(move.group, 1.0) for move in all_moves.values()]
    moves: list[str] = []
    while not moves or not program_moves.fits(moves):
        drawn = random.choices(list(all_moves), weights, k=random.randint(1, MAX_MOVES))
        moves = list(dict.fromkeys(drawn))
    spies = [name for name, move in all_moves.items() if move.group == program_moves.SPY]
    asked_for = place_asked_for(case)
    place = random.choice([asked_for, random.choice(list(program_moves.PLACES))])
    return Attack(case.name, place, tuple(moves), random.choice(spies))


def _text_attack(case: Case, random: Random) -> Attack:
    groups = [group for group in claims.CLAIMS if claims.is_possible(group, case)]
    if case.material == FORM:
        groups = [group for group in groups if group != "long"]
    weights = [claims.WEIGHTS[group] for group in groups]
    num_moves = random.choice((1, 1, 1, 2, 3))
    moves = []
    for group in random.choices(groups, weights, k=num_moves):
        name = random.choice(list(claims.CLAIMS[group]))
        moves.append(f"{group}: {name}")
    places = list(_text_places(case))
    place = random.choice([*places[:1], *places])
    spy = random.choice(list(claims.CLAIMS[claims.SPY]))
    return Attack(case.name, place, tuple(dict.fromkeys(moves)), f"{claims.SPY}: {spy}")


def _text_places(case: Case) -> Mapping[str, Callable[[str], str]]:
    if case.material != FORM:
        return claims.PLACES
    return claims.BAD_FORMS[str(case.payload["structure"])]


def _claim(case: Case, move: str) -> str:
    group, _, name = move.partition(": ")
    return claims.claim(case, group, name)
