"""The generator itself: its draws repeat, every move is drawn, and what it attacks is sound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.attacks import claims, program_moves
from tests.attacks.cases import FORM, PROGRAM, Case
from tests.attacks.generator import (
    FAMILIES,
    TASKS,
    Attack,
    case_names,
    draw,
    find_case,
    kept_attacks,
    response,
    spy_response,
)
from tests.attacks.task_cases import GRANTED
from tests.attacks.trial import Arena, is_refused

NUM_DRAWN = 8_000


@pytest.fixture(scope="module")
def drawn() -> list[Attack]:
    return [draw(seed) for seed in range(NUM_DRAWN)]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena


def written_cases() -> list[Case]:
    names = [name for family in FAMILIES if family != TASKS for name in case_names(family)]
    return [find_case(name) for name in names]


def test_the_same_seed_gives_the_same_attack(drawn: list[Attack]) -> None:
    assert [draw(seed) for seed in range(200)] == drawn[:200]
    for attack in drawn[:200]:
        assert response(attack) == response(attack)
        assert spy_response(attack) == spy_response(attack)


def test_an_attack_can_be_read_from_its_line(drawn: list[Attack]) -> None:
    for attack in drawn:
        assert Attack.parse(str(attack)) == attack


def test_every_move_place_and_family_is_drawn(drawn: list[Attack]) -> None:
    moves = {move for attack in drawn for move in attack.moves}
    expected = set(program_moves.MOVES)
    for group, named in claims.CLAIMS.items():
        expected.update(f"{group}: {name}" for name in named)
    assert expected - moves == set()
    places = {attack.place for attack in drawn}
    forms = [places for places in claims.BAD_FORMS.values()]
    assert set(program_moves.PLACES).union(claims.PLACES, *forms) - places == set()
    assert {find_case(attack.case).family for attack in drawn} == set(FAMILIES)


def test_every_kind_of_test_meets_every_kind_of_move(drawn: list[Attack]) -> None:
    met: Counter[tuple[str, str]] = Counter()
    for attack in drawn:
        case = find_case(attack.case)
        if case.material == PROGRAM:
            met.update((case.family, program_moves.MOVES[move].group) for move in attack.moves)
    kinds = {case.family for case in written_cases() if case.material == PROGRAM}
    groups = {move.group for move in program_moves.MOVES.values()}
    rare = [pair for pair in sorted((kind, group) for kind in kinds for group in groups) if met[pair] == 0]
    assert len(rare) <= len(kinds) * len(groups) // 20


def test_one_to_three_moves_make_a_response(drawn: list[Attack]) -> None:
    assert {len(attack.moves) for attack in drawn} == {1, 2, 3}


def test_every_program_compiles() -> None:
    case = find_case("HumanEval/shifted")
    for name in program_moves.MOVES:
        compile(program_moves.program(case, [name]), name, "exec")


def test_no_move_knows_an_answer() -> None:
    for case in written_cases():
        if case.material != PROGRAM:
            continue
        sources = [program_moves.program(case, [name]) for name in program_moves.MOVES]
        body = case.right.partition(":\n")[2]
        assert not any(body in source for source in sources)


def test_a_process_id_is_too_small_a_part_of_a_claim_to_earn_what_it_happens_to_hold() -> None:
    longest = 7  # digits
    aimed = [claim for claim in claims.RUN.values() if "HOST_PID" in claim]
    assert aimed and all(longest / len(claim) < GRANTED for claim in aimed)


def test_claims_name_the_truth_only_where_they_are_said_to(drawn: list[Attack]) -> None:
    case = find_case("math/0")
    for group, named in claims.CLAIMS.items():
        for name in named:
            assert (case.truth in claims.claim(case, group, name)) == (group in claims.OF_TRUTH)
    assert any(attack.names_the_truth for attack in drawn)


def one_exercise_of_each_layout() -> list[Case]:
    """All written cases but those of programs, of which each family shows another exercise."""
    cases = []
    for number, family in enumerate(FAMILIES):
        of_family = [case for case in written_cases() if case.family == family]
        programs = [case for case in of_family if case.material == PROGRAM]
        cases += [case for case in of_family if case.material != PROGRAM]
        if programs:
            cases.append(programs[number % len(programs)])
    return cases


@pytest.mark.parametrize("case", one_exercise_of_each_layout(), ids=lambda case: case.name)
def test_the_right_answer_earns_all_and_what_does_not_try_less(case: Case, arena: Arena) -> None:
    if is_refused(case.name):
        return
    honest = arena.honest(case)
    assert honest.rewards["right"] == 1.0
    assert honest.floor < 1.0
    if case.material == FORM:
        assert honest.floor == 0.0


def test_right_answers_of_tasks_earn_all(arena: Arena) -> None:
    for name in case_names(TASKS)[::10]:
        try:
            case = find_case(name)
        except KeyError:  # a task that has no answer to show
            continue
        assert arena.honest(case).rewards["right"] == 1.0


def test_kept_attacks_can_be_made() -> None:
    for attack in kept_attacks():
        assert response(attack)
