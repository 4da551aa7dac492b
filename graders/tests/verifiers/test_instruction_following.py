"""IFEval's 25 instructions, each with responses that follow it and responses that do not."""

from __future__ import annotations

from typing import Any

import pytest
from brorl_graders.base.errors import DataError
from brorl_graders.verifiers.ifeval.instruction_following import CONSTRAINTS, count_sentences, versions
from brorl_graders.verifiers.registry import check_payload, judge

GERMAN = "Das ist ein kurzer Satz, und er ist auf Deutsch geschrieben."
ENGLISH = "This is a short sentence, and it is written in English."

# name, arguments, responses that follow it, responses that do not
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["cat", "Dog"]}, ["A CAT and a dog"], ["a cat", "a dog"]),
    (
        "keywords:frequency",
        {"keyword": "tea", "frequency": 2, "relation": "at least"},
        ["Tea, tea", "teatea tea"],
        ["tea", "coffee"],
    ),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "less than"}, ["tea", "x"], ["tea tea"]),
    ("keywords:forbidden_words", {"forbidden_words": ["cat", "a+b"]}, ["category"], ["the Cat.", "cat"]),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 3, "let_relation": "at least"}, ["Eel, e"], ["eel"]),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 1, "let_relation": "less than"}, ["a"], ["#a"]),
    ("language:response_language", {"language": "de"}, [GERMAN, "1"], [ENGLISH, "a", "ok"]),
    ("language:response_language", {"language": "en"}, [ENGLISH, "Hello"], [GERMAN, "これは日本語です"]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", 'He said "no." She left. I stayed'],
        ["Dr. No met Mr. J. Smith at 5 p.m. today. Then he left.", "Pi is 3.14. Yes"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        ["One.", "one"],
        ["One. Two."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["one\n***\ntwo", "***one *** two***"],
        ["one", "one\n\ntwo", "a***b***c", "a *** *** b"],
    ),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, ["one two, three!"], ["one - two"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, ["one - two"], ["one two three"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        ["First.\n\nThen, second.", 'First.\n\n\n\n"then" second'],
        [
            "First.\n\nSecond.",
            "Then.\n\nFirst.",
            "one\n\nThen two\n\nthree",
            "First.\n\nThence",
            "1\n\nThen-it",
            "1\n\n**Then**",
        ],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[name], [address]"], ["[name] (address)"]),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. me", "p. s. me", "**P.S.** me", "(P.S. me)", "P.P.S. me"],
        ["Bye.", "PS me", "lamps.s", "p.s me"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S more", "p. p. s. more"], ["P.S. more"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b", "so:\n* a\n- b"],
        ["* a", "* a\n* b\n* c", "**a**\n**b**"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "So: My answer is maybe."],
        ["My answer is yes", "yes", "MY ANSWER IS YES.", "my answer is no."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and **b**", "*a* *b*"],
        ["*a*", "* * *a*", "a b"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb"],
        ["SECTION 1\na", "Section 1 Section 2", "SECTION one SECTION two"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1]}', '```json\n{"a": 1}\n```', "```\n[1]\n```", "```JSON\n[1]"],
        ["{a: 1}", 'so: {"a": 1}', "[" * 100_000],
    ),
    ("detectable_format:title", {}, ["<<Ode>>\nText", "x <<a b>>"], ["<Ode>", "<<>>", "<< >>", "<<a\nb>>"]),
    ("combination:two_responses", {}, ["a\n******\nb", "******a******b"], ["a", "a******a", "a******b******c"]),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem. "},
        ["write a poem.\n\nRoses"],
        ["Roses. Write a poem."],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Any questions?"},
        ["So. any questions?\n", '"x. Any questions?"'],
        ["Any questions? Yes"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["AN OX", "I AM", "TCP/IP in the U.S.", "AT&T", "IT'S", "**NO** COVID-19"],
        ["AN ox", "TCP/IP", "U.S."],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "less than"},
        ["an Ox"],
        ["an OX"],
    ),
    ("change_case:english_capital", {}, [ENGLISH.upper(), "I THINK SO."], [ENGLISH, GERMAN.upper(), "OK"]),
    ("change_case:english_lowercase", {}, [ENGLISH.lower()], [ENGLISH, GERMAN.lower(), "ok"]),
    ("punctuation:no_comma", {}, ["one; two"], ["one, two"]),
    ("startend:quotation", {}, ['"yes"', ' "a "b" c"\n'], ["yes", '"yes', '"']),
]


def score(payload: dict[str, Any], response: str) -> float:
    return judge("instruction_following", payload, response)[0]


def payload(*instructions: tuple[str, dict[str, Any]], **options: str) -> dict[str, Any]:
    return {
        "instruction_id_list": [name for name, _ in instructions],
        "kwargs": [given for _, given in instructions],
        **options,
    }


def test_the_table_has_every_instruction() -> None:
    assert {name for name, *_ in CASES} == set(CONSTRAINTS)
    assert len(CONSTRAINTS) == 25


@pytest.mark.parametrize(
    ("name", "arguments", "followed", "broken"), CASES, ids=[f"{case[0]} {number}" for number, case in enumerate(CASES)]
)
def test_an_instruction_is_followed_or_not(
    name: str, arguments: dict[str, Any], followed: list[str], broken: list[str]
) -> None:
    check_payload("instruction_following", payload((name, arguments)))
    assert [text for text in followed if score(payload((name, arguments)), text) != 1.0] == []
    assert [text for text in broken if score(payload((name, arguments)), text) != 0.0] == []


def test_an_empty_response_follows_nothing_and_thinking_does_not_count() -> None:
    no_comma = payload(("punctuation:no_comma", {}))
    assert score(no_comma, " \n") == 0.0
    assert score(no_comma, "<think>well, well</think>\nyes") == 1.0
    assert score(no_comma, "<think>well") == 0.0


def test_the_score_is_the_share_of_instructions_or_all_of_them() -> None:
    both = (("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["yes"], "num_words": None}))
    assert [score(payload(*both), text) for text in ("yes", "no", "no, no", "yes, yes")] == [1.0, 0.5, 0.0, 0.5]
    assert [score(payload(*both, scoring="all"), text) for text in ("yes", "no", "yes, yes")] == [1.0, 0.0, 0.0]


def test_loose_judging_looks_at_eight_versions() -> None:
    assert versions("a*\nb\nc") == ["a*\nb\nc", "b\nc", "a*\nb", "b", "a\nb\nc", "b\nc", "a\nb", "b"]
    assert versions("*a*") == ["*a*", "a"]
    no_comma = ("punctuation:no_comma", {})
    quoted = ("startend:quotation", {})
    response = 'Sure, here it is:\n"one two"'
    assert [score(payload(item), response) for item in (no_comma, quoted)] == [0.0, 0.0]
    assert [score(payload(item, judging="loose"), response) for item in (no_comma, quoted)] == [1.0, 1.0]
    assert score(payload(quoted, judging="loose"), '**"one"**') == 1.0
    assert score(payload(quoted, judging="loose"), "one") == 0.0


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", 0),
        ("...", 0),
        ("Hm", 1),
        ("A. B. Clarke wrote it. I read it.", 2),
        ("Yes!! No?!", 2),
        ("Wait... what? Well... Then no.", 3),
        ("e.g. this one.", 1),
        ("一。二。", 2),
    ],
)
def test_sentences_are_counted(text: str, sentences: int) -> None:
    assert count_sentences(text) == sentences


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "'instruction_id_list' is None"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "one object for each of the 1 instructions"),
        (payload(("punctuation:no_commas", {})), "unknown instruction 'punctuation:no_commas'"),
        (payload(("keywords:existence", {})), "takes keywords and was given none"),
        (payload(("keywords:existence", {"keywords": "cat"})), "write a list of texts"),
        (
            payload(("length_constraints:number_words", {"num_words": 3, "relation": "more than"})),
            "write at least or less than",
        ),
        (payload(("detectable_format:title", {}), scoring="some"), "choose fraction, all"),
        (payload(("detectable_format:title", {}), judging="lax"), "choose strict, loose"),
        (payload(("words:start_verb", {})), "cannot be judged here: it needs a tagger.*data.max_bad_rows"),
    ],
)
def test_a_payload_that_cannot_be_scored_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_payload("instruction_following", wrong)
