"""The multiple-choice verifier on a table of responses."""

from __future__ import annotations

import pytest
from brorl_graders.base.errors import DataError
from brorl_graders.verifiers.multiple_choice import chosen_letter, score
from brorl_graders.verifiers.registry import check_payload

CAPITALS = ("Berlin", "Rome", "Paris", "New York")


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("Answer: C", "C"),
        ("answer: c", "C"),
        ("The answer is (B).", "B"),
        ("The correct answer is **D**", "D"),
        ("The final answer is: $\\boxed{A}$", "A"),
        ("\\boxed{\\text{C}}", "C"),
        ("\\boxed{C. Paris}", "C"),
        ("\\boxed{Paris}", "C"),
        ("\\boxed{new  york.}", "D"),
        ("<answer>B</answer>", "B"),
        ("<answer>B) Rome</answer>", "B"),
        ("<answer>rome</answer>", "B"),
        ("<answer>I choose (B)</answer>", "B"),
        ("<think>Answer: A</think>\nAnswer: B", "B"),
        ("(A) is wrong and (B) is wrong, so (C)", "C"),
        ("It cannot be (A).\nAnswer: D", "D"),
        ("Answer: A\nWait, no.\nAnswer: B", "B"),
        ("Let me think.\n\nC", "C"),
        ("**Answer:** B", "B"),
        ("Answer: option C", "C"),
        ("The answer is C, because Paris is in France.", "C"),
        ("Paris", "C"),
        ("C", "C"),
        ("", None),
        ("I do not know", None),
        ("<think>Answer: A", None),
        ("Answer: E", None),  # no such option
        ("\\boxed{A} \\boxed{B}", None),  # two answers
        ("Answer: a city in France", None),
        ("Answer: Cairo", None),
        ("the capital of A country", None),
        ("\\boxed{B", None),
        ("Answer: AB", None),
    ],
)
def test_the_choice_of_a_response(response: str, letter: str | None) -> None:
    assert chosen_letter(response, CAPITALS) == letter


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        ("C", "Answer: C", 1.0),
        ("c", "Answer: Paris", 1.0),
        ("(C)", "\\boxed{C}", 1.0),
        (2, "Answer: C", 1.0),
        ("Paris", "Answer: C", 1.0),
        ("C", "Answer: B", 0.0),
        ("C", "", 0.0),
        (0, "Answer: C", 0.0),
    ],
)
def test_the_reference_is_a_letter_a_place_or_a_text(answer: str | int, response: str, reward: float) -> None:
    assert score({"answer": answer, "choices": list(CAPITALS)}, response) == reward


@pytest.mark.parametrize("form", ["\\boxed{%s}", "<answer>%s</answer>", "Answer: %s", "%s"])
def test_a_letter_counts_before_an_option_whose_text_is_that_letter(form: str) -> None:
    payload = {"answer": "B", "choices": ["B", "A", "D", "C"]}
    assert [score(payload, form % letter) for letter in "ABCD"] == [0, 1, 0, 0]


def test_without_the_texts_letters_are_enough() -> None:
    assert score({"answer": "J"}, "Answer: J") == 1.0
    assert score({"answer": "J"}, "Answer: K") == 0.0


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "'answer' is None; write a letter"),
        ({"answer": "E", "choices": list(CAPITALS)}, "letters A to D"),
        ({"answer": 4, "choices": list(CAPITALS)}, "a number from 0"),
        ({"answer": "Madrid", "choices": list(CAPITALS)}, "a text of 'choices'"),
        ({"answer": "A", "choices": "Berlin"}, "'choices' is 'Berlin'"),
    ],
)
def test_a_payload_that_cannot_be_scored_is_refused(payload: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_payload("multiple_choice", payload)
    check_payload("multiple_choice", {"answer": "A", "choices": list(CAPITALS)})
