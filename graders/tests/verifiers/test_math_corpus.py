"""A share of the corpus of answers of known truth; all of it: `python graders/bench/grader_corpus.py maths`."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.math.equality import USUAL, are_equal
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.reading import read

from graders.tests.support.math_corpus import MathCase, cases, pairs

SHARE = 500  # cases of each half
PAIRS = 100


@pytest.fixture(scope="module")
def decided() -> list[tuple[MathCase, bool, bool]]:
    """(pair, verdict, math-verify's) of the pairs that are decided without math-verify."""
    found = []
    for case in pairs(PAIRS):
        reference = in_one_notation(case.reference)
        given = in_one_notation(case.response)
        wanted = read(reference)
        answer = read(given)
        if wanted is None or answer is None:
            continue
        verdict = are_equal(wanted, answer, USUAL)
        if verdict is not None:
            found.append((case, verdict, equal_by_library(reference, given)))
    return found


def test_right_answers_earn() -> None:
    wronged = [case for case in cases(SHARE, is_right=True) if score({"answer": case.reference}, case.response) != 1.0]
    assert len(wronged) <= SHARE // 100, wronged


def test_wrong_answers_earn_nothing() -> None:
    paid = [case for case in cases(SHARE, is_right=False) if score({"answer": case.reference}, case.response) != 0.0]
    assert paid == []


def test_most_answers_need_no_library_and_are_judged_by_the_truth(decided: list[tuple[MathCase, bool, bool]]) -> None:
    assert len(decided) > 0.8 * PAIRS
    assert [case for case, verdict, _ in decided if verdict != case.is_right] == []


def test_where_the_library_judges_otherwise_it_is_wrong(decided: list[tuple[MathCase, bool, bool]]) -> None:
    differing = [(case, by_library) for case, verdict, by_library in decided if verdict != by_library]
    assert 0 < len(differing) < 0.25 * PAIRS
    assert [case for case, by_library in differing if by_library == case.is_right] == []
