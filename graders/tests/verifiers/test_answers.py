"""What a response answers, in one spelling: for votes."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import key_of
from brorl_graders.verifiers.math.statement import stated_answer
from brorl_graders.verifiers.registry import VERIFIERS, answer_reader

HALF = [
    "\\boxed{\\frac{1}{2}}",
    "so \\boxed{\\dfrac12}",
    "<answer>0.5</answer>",
    "the answer is $1/2$.",
    "\\boxed{ 2/4 }",
    "\\boxed{x = 0.50}",
]
SAME = [
    ("\\boxed{1,234}", "1234"),
    ("12 apples and then 17", "17"),
    ("\\boxed{(1, 2]}", "(1,2]"),
    ("\\boxed{-\\frac{3}{4}}", "-3/4"),
    ("\\boxed{50\\%}", "50"),
    ("\\boxed{90^\\circ}", "90"),
    ("\\boxed{\\text{Alice}}", "alice"),
    ("\\boxed{1} and \\boxed{2}", "{1,2}"),
    ("\\boxed{3\\frac12}", "7/2"),
    ("\\boxed{1{,}000}", "1000"),
    ("\\boxed{(-3)}", "-3"),
    ("\\boxed{−3}", "-3"),
    ("\\boxed{\\sqrt2}", "\\sqrt{2}"),
    ("\\boxed{YES}", "yes"),
    ("\\boxed{500\\text{ cm}}", "5 m^1"),
    ("The answer is: blue", "blue"),
    ("<think>\\boxed{3}</think> \\boxed{4}", "4"),
]


@pytest.mark.parametrize("response", HALF)
def test_spellings_of_a_number_are_one_answer(response: str) -> None:
    assert _read("math", response) == "1/2"


@pytest.mark.parametrize(("response", "expected"), SAME)
def test_typesetting_is_no_part_of_an_answer(response: str, expected: str) -> None:
    assert _read("math", response) == expected


@pytest.mark.parametrize("response", ["no idea", "\\boxed{}", "<answer></answer>", "<think>\\boxed{3}", ""])
def test_a_response_without_an_answer_does_not_vote(response: str) -> None:
    assert _read("math", response) is None


def test_numbers_that_no_one_should_compute_stay_text() -> None:
    assert key_of("9^{9^{9}}") == "9^{9^{9}}"
    assert key_of("1/0") == "1/0"
    assert key_of("1" * 100) == "1" * 100


def test_what_an_unmarked_text_says_last_is_its_answer() -> None:
    assert stated_answer("first 3, then $x+1$") == "x+1"
    assert stated_answer("first 3, then -4") == "-4"
    assert stated_answer("nothing", may_be_words=False) is None


def test_capitals_are_part_of_a_name() -> None:
    for one, other in (("x", "X"), ("AB", "ab"), ("(x, y)", "(X, y)")):
        assert key_of(one) != key_of(other)


def test_other_verifiers_read_what_they_score() -> None:
    assert _read("exact_match", "<answer> a   b </answer>") == "a b"
    assert _read("reasoning_gym", "<answer>7</answer>") == "7"
    assert _read("reasoning_gym", "7") is None
    assert _read("multiple_choice", "Answer: (c)") == "C"


def test_programs_and_instructions_have_no_answer_to_vote_for() -> None:
    for name in ("code", "instruction_following", "format", "package.module:function"):
        assert answer_reader(name, {}) is None, name
    readable = {name for name in VERIFIERS if answer_reader(name, {}) is not None}
    assert readable == {"exact_match", "math", "multiple_choice", "reasoning_gym"}


def test_a_composition_answers_as_its_first_part_that_can() -> None:
    parts = {"parts": [{"verifier": "format"}, {"verifier": "math", "options": {"extract": "boxed"}}]}
    read = answer_reader("composite", parts)
    assert read is not None
    assert read("12 and \\boxed{0.5}") == "1/2"
    assert read("the answer is 12") is None, "by the part's own options"
    assert answer_reader("composite", {"parts": [{"verifier": "code"}]}) is None


def _read(name: str, response: str) -> str | None:
    read = answer_reader(name, {"answer": "1"})
    assert read is not None
    return read(response)
