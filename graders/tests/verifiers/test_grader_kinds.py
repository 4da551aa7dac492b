"""A share of the drawn kinds of answers; all of them: `python graders/bench/grader_corpus.py kinds`."""

from __future__ import annotations

from typing import Any

from brorl_graders.verifiers import multiple_choice
from brorl_graders.verifiers.math import answer as maths

from graders.tests.support.grader_kinds import KINDS, Case, cases, is_held_out

SHARE = 3  # right and wrong responses of each kind
SEED = 5
VERIFIERS: dict[str, Any] = {"math": maths, "multiple_choice": multiple_choice}


def misjudged(is_right: bool) -> list[Case]:
    kinds = [kind for kind in KINDS if not is_held_out(kind)]
    drawn = [case for kind in kinds for case in cases(kind, SHARE, is_right, SEED)]
    return [case for case in drawn if VERIFIERS[case.verifier].score(case.payload, case.response) != float(is_right)]


def test_right_answers_of_all_kinds_earn() -> None:
    assert len(misjudged(is_right=True)) <= 0.03 * SHARE * len(KINDS)


def test_wrong_answers_of_all_kinds_earn_nothing() -> None:
    assert misjudged(is_right=False) == []
