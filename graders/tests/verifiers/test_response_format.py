"""The format verifier: structure, language and repetition of responses."""

from __future__ import annotations

from typing import Any

import pytest
from brorl_graders.base.errors import DataError
from brorl_graders.verifiers.registry import check_payload
from brorl_graders.verifiers.response_format import has_structure, repeated_words, score

ENGLISH = "We add the two numbers and then we look at what is left."


@pytest.mark.parametrize(
    ("structure", "response", "has"),
    [
        ("think_answer", "<think>a</think><answer>b</answer>", True),
        ("think_answer", "<think>\na\n</think>\n\n<answer> b </answer>\n", True),
        ("think_answer", "<think>a</think> so <answer>b</answer>", False),
        ("think_answer", "<think>a</think><answer>b</answer> bye", False),
        ("think_answer", "<think></think><answer>b</answer>", False),
        ("think_answer", "<think>a</think><answer> </answer>", False),
        ("think_answer", "<think>a<think>b</think><answer>c</answer>", False),
        ("think_answer", "<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("think_answer", "<think>a <answer>b</answer></think><answer>c</answer>", False),
        ("think_answer", "<answer>b</answer>", False),
        ("think_answer", "a</think><answer>b</answer>", False),
        ("think", "<think>a</think>b", True),
        ("think", "<think>a</think> ", False),
        ("think", "b<think>a</think>", False),
        ("think", "<think>a", False),
        ("answer", "so <answer>b</answer>", True),
        ("answer", "so <answer>b</answer> or c", False),
        ("answer", "so <answer>b", False),
        ("boxed", "so $\\boxed{b}$.", True),
        ("boxed", "so b", False),
        ("boxed", "so \\boxed{ }", False),
        ("boxed", "\\boxed{b} " + "and so on " * 5, False),
        ("boxed", "\\boxed{a}, \\boxed{b}", False),
        ("boxed", f"so \\boxed{{a}}.{' And on we go.' * 50} No: \\boxed{{b}}", False),
        ("boxed", "so \\boxed{\u200b}", False),
        ("answer", "<answer>\u200b</answer>", False),
        ("answer", "<answer>\ufeff \u2060</answer>", False),
        ("think_answer", "<think>\u00ad</think><answer>b</answer>", False),
    ],
)
def test_structures(structure: str, response: str, has: bool) -> None:
    assert has_structure(response, structure) is has


def test_a_template_may_have_opened_the_thinking() -> None:
    payload = {"structure": "think_answer", "is_think_open": True}
    assert score(payload, "a</think><answer>b</answer>") == 1.0
    assert score(payload, "<think>a</think><answer>b</answer>") == 0.0


def test_language_is_that_of_the_prose_and_not_of_code_or_formulas() -> None:
    payload = {"language": "en"}
    assert score(payload, f"{ENGLISH} $\\alpha+\\beta$\n```python\nfür = groß\n```") == 1.0
    assert score(payload, "Wir addieren die beiden Zahlen und sehen dann, was übrig bleibt.") == 0.0
    assert score(payload, "我们把两个数字加起来，然后看看还剩下什么。") == 0.0
    assert score(payload, "") == 0.0


def test_repetition_is_the_share_of_word_ngrams_said_before() -> None:
    assert repeated_words("a b a b a", 2) == 0.5  # ab ba ab ba
    assert repeated_words("a b", 2) == 0.0
    payload = {"max_repetition": 0.5, "repetition_ngram": 2}
    assert score(payload, "a b a b a") == 1.0
    assert score(payload, "a b a b a b") == 0.0  # 1 - 2/5


def test_a_text_without_blanks_repeats_itself_as_well() -> None:
    assert repeated_words("abc" * 1000, 8) > 0.99
    assert repeated_words("我们看看。" * 100, 8) > 0.9
    assert repeated_words("今天天气很好我们去公园散步", 2) == 0.0
    assert repeated_words("https://example.org/a/b/c?d=e", 2) == 0.0


@pytest.mark.parametrize("unit", ["<answer>", "</think>", "\\[", "\\(", "$$ a", "```", "\\boxed{", "<think>", "\n"])
@pytest.mark.parametrize("structure", ["think_answer", "think", "answer", "boxed"])
def test_a_long_run_of_marks_has_no_structure(unit: str, structure: str) -> None:
    text = f"<think>{unit * (100_000 // len(unit))}"
    assert score({"structure": structure, "language": "en"}, text) == 0.0


def test_everything_asked_for_must_hold_or_the_share_counts() -> None:
    payload: dict[str, Any] = {"structure": "boxed", "max_repetition": 0.0, "repetition_ngram": 1}
    assert [score(payload, text) for text in ("so \\boxed{1}", "so so \\boxed{1}", "so so")] == [1.0, 0.0, 0.0]
    payload["scoring"] = "fraction"
    assert [score(payload, text) for text in ("so \\boxed{1}", "so so \\boxed{1}", "so so")] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "nothing is asked for"),
        ({"structure": "essay"}, "choose think_answer, think, answer, boxed"),
        ({"language": 1}, "an ISO 639 code"),
        ({"max_repetition": 1.5}, "a share from 0 to below 1"),
        ({"max_repetition": 0.5, "repetition_ngram": 0}, "a number of words from 1"),
    ],
)
def test_a_payload_that_cannot_be_scored_is_refused(payload: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_payload("format", payload)
