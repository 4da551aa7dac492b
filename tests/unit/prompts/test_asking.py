"""Where answers have to stand, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
from brorl_graders.base.answer import last_answer
from brorl_graders.verifiers import exact_match
from brorl_graders.verifiers.math import answer as math_answer

from nemo_brorl.config.data import DataConfig
from nemo_brorl.prompts.asking import INSTRUCTIONS, place_of_answer, render_question
from nemo_brorl.prompts.questions import Question

SEVEN = {"answer": "7"}


def question(text: str = "3 + 4?", verifier: str = "exact_match", **payload: Any) -> Question:
    return Question(task="sums", verifier=verifier, text=text, payload={**SEVEN, **payload})


def test_a_verifier_of_tags_has_the_model_told_where_nobody_says_so() -> None:
    asked = render_question(question(), None, DataConfig())
    assert asked.messages == [{"role": "user", "content": f"3 + 4?\n\n{INSTRUCTIONS['tags']}"}]
    assert asked.instruction == INSTRUCTIONS["tags"]
    assert asked.payload == SEVEN, "tags are read where nothing is said"


@pytest.mark.parametrize(
    ("text", "system_prompt"),
    [("3 + 4? Answer as <answer>N</answer>.", None), ("3 + 4?", "Write the answer between <answer> and </answer>.")],
)
def test_who_says_so_already_is_not_said_it_again(text: str, system_prompt: str | None) -> None:
    asked = render_question(question(text), system_prompt, DataConfig())
    assert asked.messages[-1]["content"] == text
    assert not asked.instruction


def test_an_instruction_of_ones_own_and_none() -> None:
    own = render_question(question(), None, DataConfig(answer_instruction="Use <answer>."))
    assert own.messages[-1]["content"] == "3 + 4?\n\nUse <answer>."
    assert render_question(question(), None, DataConfig(answer_instruction="")).messages[-1]["content"] == "3 + 4?"


def test_verifiers_that_find_answers_by_themselves_ask_for_no_place() -> None:
    assert place_of_answer("math", SEVEN, "auto") is None
    assert place_of_answer("math", {**SEVEN, "extract": "boxed"}, "auto") == "boxed"
    assert place_of_answer("multiple_choice", SEVEN, "last") is None
    parts = {**SEVEN, "parts": [{"verifier": "format"}, {"verifier": "reasoning_gym"}]}
    assert place_of_answer("composite", parts, "auto") == "tags"


@pytest.mark.parametrize("verifier", [exact_match, math_answer])
def test_a_chosen_place_is_where_the_verifier_reads(verifier: Any) -> None:
    last = render_question(question(), None, DataConfig(answer_format="last")).payload
    boxed = render_question(question(), None, DataConfig(answer_format="boxed")).payload
    assert verifier.score(last, "3 and 4 make 7.\nThe answer is 7.") == 1.0
    assert verifier.score(last, "<answer>7</answer>") == 0.0, "one place, not every place"
    assert verifier.score(boxed, "so \\boxed{7}") == 1.0
    assert verifier.score(boxed, "The answer is 7.") == 0.0


RIGHT = (
    "The answer is 7.",
    "the answer is: 7",
    "**Answer:** 7",
    "Final answer: **7**",
    "So:\nAnswer:\n7",
    "The answer is $7$.",
    "The answer is \\boxed{7}.",
    "3 + 4 = 7\n#### 7",
    "First I thought the answer is 8.\nNo: the answer is 7.",
    "<think>the answer is 9</think>The answer is 7",
)


@pytest.mark.parametrize("response", RIGHT)
def test_what_stands_behind_the_last_answer_is_earns(response: str) -> None:
    assert exact_match.score({**SEVEN, "answer_format": "last"}, response) == 1.0


WRONG = (
    "7",
    "7 is what I get.",
    "The answer is 7 or 8.",
    "The answer is 6, 7, 8.",
    "The answer is not 7.",
    "The answer is 7. The answer is 8.",
    "The answer is one of 1 2 3 4 5 6 7 8 9",
    "The answer is 7? Or the answer is 9?",
    "<think>The answer is 7.",
    "The answer is \\boxed{7}, \\boxed{8}.",
    "I cannot answer. 7",
    "The answer is\n8\n7",
    "The answer is " + "7 " * 300,
    "answers: 7",
)


@pytest.mark.parametrize("response", WRONG)
def test_guesses_lists_denials_and_thoughts_earn_nothing(response: str) -> None:
    payload = {**SEVEN, "answer_format": "last"}
    assert exact_match.score(payload, response) == 0.0


def test_an_answer_of_several_words_keeps_them() -> None:
    assert last_answer("The answer is New York.") == "New York"
    assert last_answer("The answer is 7.5.") == "7.5"
    assert last_answer("nothing here") is None
