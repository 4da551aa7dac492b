"""Responses shown to people: why they earned what they did, and nothing in them that a terminal obeys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brorl_graders.base.foreign import inert

from nemo_brorl.evaluation.shown_responses import quoted, reward_reason
from tests.unit.evaluation.answers import group_of


def test_an_answer_that_stands_elsewhere_is_pointed_out() -> None:
    group = group_of([0.0] * 4)
    found = reward_reason(group, 2, "The answer is 7.")
    assert "it says '7' elsewhere (data.answer_format=last reads that)" in found
    assert reward_reason(group_of([1.0], answer_format="last"), 0, "The answer is 7.").startswith("answer found: '7'")
    assert reward_reason(group_of([1.0], verifier="math"), 0, "so $x = 7$").startswith("answer found: ")
    assert reward_reason(group_of([1.0], verifier="language"), 0, "so") == "scored by language"


def test_the_verifiers_own_reason_is_shown_and_inert() -> None:
    group = replace(group_of([0.5, 0.0], verifier="language"), reasons=("half right\x1b[2J", ""))
    assert reward_reason(group, 0, "so") == "scored by language: half right\\x1b[2J"
    assert reward_reason(group, 1, "so") == "scored by language"


def test_a_response_that_was_cut_says_so() -> None:
    group = group_of([0.0])
    [chunk] = group.group.chunks
    cut = replace(group.group, chunks=(replace(chunk, is_stopped=np.array([False])),))
    assert reward_reason(replace(group, group=cut), 0, "I think").endswith("it was cut at 2 tokens, before its end")


@pytest.mark.parametrize("text", ["\x1b[2J\x1b]0;owned\x07", "a\rb", "\u202etxt", "\x9b31m", "\udc80", "\u2028"])
def test_hostile_text_reaches_a_terminal_inert(text: str) -> None:
    shown = inert(text)
    assert shown.isprintable()
    assert shown.encode("utf-8")
    assert inert("a\nb ü 7") == "a\nb ü 7"


def test_a_flood_of_marks_on_a_letter_is_escaped_and_scripts_that_stack_marks_are_not() -> None:
    assert inert("e" + "\u0301" * 10) == "e" + "\u0301" * 8 + "\\u0301" * 2
    words = "Việt שָׁלוֹם हिन्दी བསྒྲུབས ภาษาไทยที่ ❤️"
    assert inert(words) == inert(words + words)[: len(words)] == words


def test_long_text_is_shown_by_its_end() -> None:
    lines = quoted("said", "x" * 5000 + " end")
    assert lines[1].startswith("    | … x")
    assert lines[1].endswith(" end")
    assert len(lines[1]) < 800
