"""IFBench's instructions, each with responses that follow it and responses that do not."""

from __future__ import annotations

import string
from typing import Any

import pytest
from brorl_graders.verifiers.ifeval.ifbench_counts import NAMES
from brorl_graders.verifiers.ifeval.ifbench_formats import CAPITALS, REPEATED
from brorl_graders.verifiers.ifeval.instruction_following import CONSTRAINTS, INSTRUCTIONS, REFUSED
from brorl_graders.verifiers.registry import check_payload, judge

PALINDROMES = "level radar civic rotor kayak madam refer tenet solos stats"
STORY = " ".join(f"{letter}nd so on." for letter in string.ascii_uppercase)
QUESTIONS = "\n".join(
    f"Question {number}: {'why ' * number}?\n" + "\n".join(f"{letter}. x" for letter in "ABCDE")
    for number in (1, 2, 3, 4)
)
COUNTRIES = "\n".join(["Zimbabwe", "Zambia", *(f"Country {number:02}" for number in range(60, 9, -1))])
CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f"{number},Italy,Rome,2020,5" for number in range(7))
PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f'{n},toys,"A&B",5,1' for n in range(14))
STUDENTS = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + "\n".join(['"1"\t"a"\t"b"\t"c"\t"d"'] * 3)
KEYWORDS = {f"keyword{number}": word for number, word in enumerate(("ant", "bee", "cat", "dog", "elk"), 1)}
FIVE = " ".join(["ant"] + ["bee"] * 2 + ["cat"] * 3 + ["dog"] * 5 + ["elk"] * 7)
REQUEST = {"prompt_to_repeat": "Write a poem now"}

# name, arguments, responses that follow it, responses that do not
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, ["a b", "a b, c!"], ["a", "a b c d"]),
    ("count:unique_word_count", {"N": 3}, ["a b, c", "so-so soso it"], ["A a b, B!", "a b -"]),
    ("count:conjunctions", {"small_n": 2}, ["and, but", "So or"], ["and and", "sand butter"]),
    ("count:person_names", {"N": 2}, ["Emma met Leo.", NAMES], ["Emma met Emma.", "Emmas Leon"]),
    ("count:numbers", {"N": 2}, ["1,000 and 3.5", "7 of 9", "10–20"], ["1 2 3", "none", "7-9"]),
    ("count:punctuation", {}, ["a, b; c: d! e? f. g?!", ".,!?;:‽"], [".,!?;:", "a?! b, c. d; e:"]),
    (
        "count:pronouns",
        {"N": 3},
        ["I saw him/her.", "it, it, it", "I'm what they're", "Everyone who is this"],
        ["I saw him", "items"],
    ),
    ("count:words_japanese", {"N": 2}, ["a 犬 b ねこ", "a 犬 b -"], ["a b", "a 犬 b c", "x"]),
    ("count:keywords_multiple", KEYWORDS, [FIVE], [FIVE + " ant", "ant"]),
    ("ratio:sentence_type", {}, ["One. Two. Three?"], ["One. Two?", "One."]),
    ("ratio:sentence_balance", {}, ["One. Two? Three!"], ["One. Two?", "none"]),
    (
        "ratio:overlap",
        {"reference_text": "abcdef", "percentage": 50},
        ["abcdxy"],
        ["abcdef", "xyz", ""],
    ),
    ("ratio:sentence_words", {}, ["Ann ran. Bob sat. Cat hid."], ["Ann ran. Ann sat. Cat hid.", "Ann ran. Bob."]),
    ("words:alphabet", {}, ["Yes, zebras are big"], ["a c", "1 2", "a"]),
    ("words:vowel", {}, ["a tree in", "sky"], ["a tree in mud", "a\nb"]),
    ("words:consonants", {}, ["Strong - things stand."], ["a strong", "!", "it's", "so-to"]),
    ("words:palindrome", {}, [PALINDROMES], [PALINDROMES[6:], "noon " * 10]),
    ("words:prime_lengths", {}, ["to the house"], ["a", "to four", "..."]),
    ("words:repeats", {"small_n": 2}, ["a a b", "x"], ["a A a"]),
    ("words:last_first", {}, ["I see you. You see me. Me too.", "I see you… You see."], ["I see you. He sees.", "I."]),
    ("words:paragraph_last_first", {}, ["Go and go!\n\nno", "Go, go"], ["Go away", "x"]),
    ("words:no_consecutive", {}, ["one big cat"], ["big Bad", "one"]),
    (
        "words:keywords_specific_position",
        {"keyword": "cat", "n": 2, "m": 3},
        ["One. The big cat. Yes", "One. It's Cat, yes.", "One. A good-looking cat"],
        ["The big cat.", "A. Cat"],
    ),
    (
        "words:words_position",
        {"keyword": "cat"},
        ["a cat or cat b", "a cat b", "It's Cat, then."],
        ["cat a b cat", "cat"],
    ),
    (
        "sentence:alliteration_increment",
        {},
        ["One two. Big bad wolf. Six sad seals."],
        ["Big bad. Sad seals.", "One two."],
    ),
    ("sentence:keyword", {"word": "Cat", "N": 2}, ["One. A cat. Two."], ["A cat. One.", "cat", "One. A category."]),
    ("sentence:increment", {"small_n": 2}, ["One. One two three."], ["One. One two.", "One."]),
    ("custom:sentence_alphabet", {}, [STORY], [STORY[10:], STORY + " And."]),
    (
        "format:parentheses",
        {},
        ["a ([{(x [y])}])", "(((((x)))))", ":( (1 (2 (3 (4 (5)) (6))))"],
        ["((((x))))", "(((((x)))]", "((((((("],
    ),
    ("format:quotes", {}, ['He said "she said \'they said "no" to\'  me".'], ["\"a 'b'\"", "it's 'x'"]),
    ("format:options", {"options": "yes/no/maybe"}, ["Yes.", "maybe"], ["yes or no", "perhaps"]),
    ("format:options", {"options": "a), b), c)"}, ["b)", "b)\n"], ["b", "B)", "a), b)"]),
    ("format:options", {"options": ["I know", "I don't know"]}, ["I know"], ["know"]),
    ("format:newline", {}, ["one\ntwo,\n\nthree"], ["one two", "a b\nc"]),
    ("format:emoji", {}, ["Hi there 😀. Bye 🎉!", "Hi. 😀 Bye. 👍🏽"], ["Hi there. Bye 🎉!", "Hi", "Hi →.", "です"]),
    ("format:line_indent", {}, ["a\n b\n   c"], ["a\nb", " a\nb", "a", "a\n\tb"]),
    (
        "format:quote_unquote",
        {},
        ['"Go" means leave.', "none", 'A 5" pipe is "small" here.'],
        ['He said "go"', '"a" "b" c', '"a'],
    ),
    ("format:list", {"sep": "->"}, ["-> a\n-> b", "**->** a\n1. -> b", "a -> b -> c"], ["-> a", "a->b->c", "-> a\n->"]),
    ("format:thesis", {}, ["<i>Cats rule.</i> Because.", "x <em>y</em> z"], ["<i>a</i>", "<i></i> a", "*a* b"]),
    ("format:sub-bullets", {}, ["* a\n  - b\n* c\n  - d\n  - e"], ["* a\n* b\n - c", "- a", "a"]),
    (
        "format:no_bullets_bullets",
        {},
        ["One. Two.\n* a\n* b"],
        ["One.\n* a\n* b", "One. Two.\n* a", "* a\nOne. Two.\n* b"],
    ),
    ("custom:multiples", {}, ["14, 21, 28, 35, 42, 49"], ["7, 14", "14 21 28 35 42 49 56"]),
    ("custom:mcq_count_length", {}, [QUESTIONS], [QUESTIONS[20:], "Question 1: a?\nA. b"]),
    ("custom:reverse_newline", {}, [COUNTRIES], ["Zimbabwe\nZambia", COUNTRIES.replace("Zambia", "Algeria")]),
    ("custom:word_reverse", {}, ["eagle bald the is It"], ["It is the bald eagle", "eagle bald"]),
    ("custom:character_reverse", {}, ["elgae dlab eht"], ["the bald eagle"]),
    (
        "custom:european_capitals_sort",
        {},
        [", ".join(CAPITALS.split()), ",".join(CAPITALS.split()) + "."],
        ["Oslo, Helsinki"],
    ),
    (
        "custom:csv_city",
        {},
        [CITIES],
        [CITIES + "\n1,2,3,4,5", CITIES.replace(",C", ", C"), CITIES.replace("Year", "When"), "ID"],
    ),
    (
        "custom:csv_special_character",
        {},
        [PRODUCTS],
        [PRODUCTS.replace("&", "n"), PRODUCTS[:90], PRODUCTS.replace('"A&B",5', '"A","5"')],
    ),
    (
        "custom:csv_quotes",
        {},
        [STUDENTS],
        [STUDENTS.replace('"a"', "a"), STUDENTS.replace('"Grade"', "Grade"), STUDENTS.replace("\t", ",")],
    ),
    ("custom:date_format_list", {}, ["1796-04-12, 1815-06-18"], ["1815-06-31", "1066-10-14", "18 June 1815"]),
    ("repeat:repeat_change", REQUEST, ["Draft a poem now"], ["Write a poem now", "Draft a poem"]),
    ("repeat:repeat_simple", {}, [REPEATED, f"{REPEATED.lower()}\n"], ["Only this."]),
    ("repeat:repeat_span", {**REQUEST, "n_start": 1, "n_end": 2}, ["A poem"], ["a poem now", "write a", "a"]),
    ("format:title_case", {}, ["The Cat of Rome", "A B", "McDonald's iPhone"], ["the cat", "A cat", "the Cat"]),
    (
        "format:output_template",
        {},
        ["My Answer: a My Conclusion: b Future Outlook: c"],
        ["My Answer: a", "My Conclusion: My Answer:"],
    ),
    ("format:no_whitespace", {}, ["a-b", "a\n"], ["a b", "a\nb"]),
]


def score(payload: dict[str, Any], response: str) -> float:
    return judge("instruction_following", payload, response)[0]


def payload(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"instruction_id_list": [name], "kwargs": [arguments]}


def test_all_58_types_are_judged_or_refused_with_a_reason() -> None:
    judged = set(INSTRUCTIONS) - set(CONSTRAINTS)
    assert {name for name, *_ in CASES} == judged
    assert len(judged) + len(REFUSED) == 58
    assert not judged & set(REFUSED)


@pytest.mark.parametrize(
    ("name", "arguments", "followed", "broken"), CASES, ids=[f"{case[0]} {number}" for number, case in enumerate(CASES)]
)
def test_an_instruction_is_followed_or_not(
    name: str, arguments: dict[str, Any], followed: list[str], broken: list[str]
) -> None:
    check_payload("instruction_following", payload(name, arguments))
    assert [text for text in followed if score(payload(name, arguments), text) != 1.0] == []
    assert [text for text in broken if score(payload(name, arguments), text) != 0.0] == []


@pytest.mark.parametrize("name", sorted({name for name, *_ in CASES}))
def test_odd_responses_raise_nothing(name: str) -> None:
    arguments = next(given for other, given, *_ in CASES if other == name)
    for text in (
        "",
        "\n",
        ".",
        "\u200b",
        "*",
        "-",
        '"',
        "'",
        "(",
        "<i>",
        ",",
        "\t",
        "😀",
        "a" * 5000,
        "\0",
        "Question",
        "١",
    ):
        assert score(payload(name, arguments), text) in (0.0, 1.0)


def test_whole_numbers_may_come_as_3_0() -> None:
    assert score(payload("words:keywords_specific_position", {"keyword": "b", "n": 1.0, "m": 2.0}), "a b") == 1.0
