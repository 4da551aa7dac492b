"""Who is wronged and who is not by the multiple-choice verifier: right answers as models write them, and hedges."""

from __future__ import annotations

import re

import pytest
from brorl_graders.verifiers.multiple_choice import LETTERS, chosen_letter, score

QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("A", ("Paris", "Rome", "The city of Oslo", "42 km")),
    ("C", ("Paris", "Rome", "The city of Oslo", "42 km")),
    ("D", ("all of the above", "x^2 + 1", "a dog", "None of these")),
)

# L stands for the letter, T for the option's text.
SHORT = r"""
L | (L) | L. | L) | [L] | {L} | **L** | **(L)** | **L.** | **L)** | __L__ | `L` | "L" | $L$ | *L*
L. T | L) T | (L) T | L: T | L - T | **L. T** | **L**: T | **L)** T | Option L | option (L) | Choice L | Option L: T
T | T. | **T** | "T" | \text{L} | \text{T} | \textbf{L} | \mathrm{L} | \textbf{(L)} | \text{L. T} | \text{(L) } T
L.~T | \text{L}) T | $\text{L}$ | (L)\ T | L\quad T
"""
BOXES = r"""
\boxed{L} | $\boxed{L}$ | $$\boxed{L}$$ | \[\boxed{L}\] | \fbox{L} | \boxed{\text{T}} | \boxed{\text{L}} | \boxed{T}
\boxed{L. T} | \boxed{\textbf{(L)}\ T} | \boxed{\mathrm{(L)}} | \boxed{\text{Option L}} | \boxed{L: \text{T}}
\boxed{\text{L: T}} | \boxed{\textbf{L}} | So the answer is \boxed{L}. | **Answer: \boxed{L}** | \boxed{(L)}
"""
SENTENCES = r"""
The answer is L | The answer is L. | The answer is (L). | the answer is **L**
The answer is: L | Thus, the answer is L! | The correct answer is L: T | The correct answer is (L) T.
The correct option is L. | The final answer is $L$.
The best answer is L | The right answer is L. | My answer is L. | The answer would be L. | The answer must be (L).
The answer should be L | The answer to the question is L. | The most likely answer is L. | The answer is option L.
Answer: L | **Answer:** L | **Answer: L** | **Answer**: L | ANSWER: L | answer: L | Answer - L | Answer -> L
Answer = L | **Final Answer:** L | Final Answer: **(L)** | ### Answer: L | Correct answer: L | Correct option: L
Option: L | I choose L. | I would choose (L). | I'd go with L. | I will go with option L. | I pick L | I select **L**.
L is the correct answer. | So (L) is the right answer. | Therefore, **L** is the answer. | L is correct.
The answer is L because of what was said. | The answer is L, since the others are wrong. | The answer is L as shown.
Rome was not built in a day, so the answer is L. | The answer is T. | The correct answer is "T". | Answer: T
The solution is L. | Our choice is L. | It cannot be (B). The answer is L. | (A) and (B) are odd.\nAnswer: L
**Final Answer**\n\nL | ### Final Answer\n\n**L** | The answer is:\n\nL | Let me think.\n\nL | So:\n(L)
Step 1.\n\n**L** | <think>Is it B? The answer is B.</think>\nL | <think>no</think>The answer is L.
"""
IN_TAGS = (
    *(
        "The answer is L.",
        "the answer is (L)",
        "The correct answer is **L**",
        "Answer: L",
        "I choose L",
        "\nL\n",
        "<b>L</b>",
    ),
    *("L is the correct answer.", "L, because it fits", "The answer is option L: T", "Final answer: L", "It is (L)"),
)

HEDGES = r"""
A, B, C or D | A or B | A and B | A/B | A, B | (A) or (B) | A, C | A & C | A; C | A|C | A, B and C and D
either A or C
both A and C | A, B, C, and D | (A), (C) | A or maybe C | A. or C. | A) or C) | [A, C] | {A, C} | A + C | AC | A B C D
**A** or **C** | $A$ or $C$ | A, (C) | A or option C | option A or option C | "A" or "C" | `A`, `C` | A, or C
"""


def cells(table: str) -> list[str]:
    found = re.split(r" \| |\n", table.strip())
    return [cell.strip().replace("\\n", "\n") for cell in found]


def right_answers() -> list[tuple[str, str, tuple[str, ...]]]:
    """(response, right letter, options)."""
    short = cells(SHORT)
    forms = [*short, *cells(BOXES), *cells(SENTENCES)]
    forms += [f"<answer>{form}</answer>" for form in (*short, *cells(BOXES), *IN_TAGS)]
    forms += [f"The answer is {form}." for form in short[:8]]
    found = []
    for letter, options in QUESTIONS:
        text = options[LETTERS.index(letter)]
        for form in forms:
            response = re.sub(r"\b([LT])\b", lambda mark: letter if mark[0] == "L" else text, form)  # noqa: B023
            found.append((response.replace("__L__", f"__{letter}__"), letter, options))
    return found


def hedges() -> list[str]:
    found = cells(HEDGES)
    answers = [f"The answer is {hedge}" for hedge in found]
    boxes = [f"\\boxed{{{hedge}}}" for hedge in found]
    tags = [f"<answer>{hedge}</answer>" for hedge in found]
    return [*answers, *boxes, *tags, "\\boxed{A} or \\boxed{C}", "<answer>\\boxed{A} \\boxed{C}</answer>"]


def test_of_right_answers_one_in_a_hundred_at_most_scores_0() -> None:
    corpus = right_answers()
    assert len(corpus) >= 450
    wronged = [
        (response, letter)
        for response, letter, options in corpus
        if not score({"answer": letter, "choices": list(options)}, response)
    ]
    assert len(wronged) <= 0.01 * len(corpus), wronged


def test_a_letter_is_enough_without_the_options_texts() -> None:
    letters = [form for form in cells(SENTENCES) if "T" not in re.findall(r"\b[T]\b", form)]
    wronged = [form for form in letters if not score({"answer": "C"}, re.sub(r"\bL\b", "C", form))]
    assert wronged == []


def test_a_hedge_of_several_letters_is_accepted_for_none() -> None:
    corpus = hedges()
    assert len(corpus) >= 90
    options = ("Paris", "Rome", "The city of Oslo", "42 km")
    assert [hedge for hedge in corpus if chosen_letter(hedge, options) is not None] == []


@pytest.mark.parametrize(
    "text",
    [
        "A dog is barking.",
        "The answer is a dog",
        "I think it is hard.",
        "Option A is wrong. Option B is wrong.",
        "The answer is not known.",
        "A is a good approach to the question.",
    ],
)
def test_prose_chooses_nothing(text: str) -> None:
    assert chosen_letter(text, ("Paris", "Rome", "Oslo", "Bern")) is None


@pytest.mark.parametrize(
    "unit", ["\n", " ", "\t\n", "answer ", "the answer", "final ", "(", "**", "A\n", "\\text{", "$", "option "]
)
def test_long_runs_are_no_choice(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    for form in (text, f"{text}x", f"<answer>{text}</answer>", f"The answer is {text}", f"\\boxed{{{text}"):
        assert chosen_letter(form, ("Paris", "Rome")) in (None, "A")


COLOURS = ("red", "green", "blue", "grey")


@pytest.mark.parametrize(
    "response",
    [
        "So C.",
        "(A) is odd. I think it's C",
        "Not A, B or D, so C.",
        "C, not A.",
        "C) blue, since the sea is blue.",
        "We choose C.",
        "Only option C fits.",
        "This corresponds to option (C).",
        "Options A and B are wrong, which leaves C.",
        '{"reasoning": "It is cold.", "answer": "C"}',
        "\u3010\u7b54\u6848\u3011C",
        "C is right since blue is a cold colour.",
        "Hence, option C, because it cannot be B.",
        "\\boxed{3}",
        "The answer is 3.",
        "It is \\boxed{\\Delta x}.\nAnswer: C",
        "\u7b54\u6848\uff1a\uff08C\uff09",
        "\u6545\u9009C\u3002",
        "Answer\uff1a\uff23",
        "La r\u00e9ponse est C.",
        "Die richtige Antwort ist C.",
    ],
)
def test_a_concluded_letter_counts_in_every_script(response: str) -> None:
    assert score({"answer": "C", "choices": COLOURS}, response) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "So not C.",
        "So is it C?",
        "So A or C.",
        "A, not C.",
        "Vitamin C.",
        "C) red, since blue is cold.",
        "Only C is wrong.",
        "We do not choose C.",
        '{"answer": "A"}',
        "I doubt that it is C.",
        "\\boxed{2}",
        "\\boxed{A or C}\nAnswer: C",
        "\u4e0d\u9009C",
        "\u9009C\u6216A",
        "La r\u00e9ponse est C ou A.",
        "Die Antwort ist nicht C.",
    ],
)
def test_a_denied_letter_and_several_letters_earn_nothing_in_any_script(response: str) -> None:
    assert score({"answer": "C", "choices": COLOURS}, response) == 0.0


def test_a_number_stands_for_no_letter_beside_options_with_digits() -> None:
    assert score({"answer": "C", "choices": ("4 km", "8 km", "9 km")}, "\\boxed{3}") == 0.0


CORRECTED = (
    ("The answer is A. Wait, actually it's B.", "B"),
    ("The answer is B, wait, no, C.", "C"),
    ("Answer: B. Sorry, I mean C.", "C"),
    ("The answer is B. Wait, that's wrong.", None),
    ("The answer is B. No, that can't be right.", None),
    ("\\boxed{B}. Wait, that's wrong.", None),
    ("The answer is C. There is no A in it.", "C"),
    ("I mean, A is a vowel. The answer is C.", "C"),
)


@pytest.mark.parametrize(("response", "letter"), CORRECTED)
def test_a_letter_that_is_taken_back_gives_way_to_the_one_that_takes_its_place(
    response: str, letter: str | None
) -> None:
    assert chosen_letter(response) == letter


def test_a_letter_before_the_text_of_another_option_chooses_neither() -> None:
    cities = ("Paris", "London", "Rome")

    for response in ("(B) Paris", "B. Paris", "The answer is (B) Paris.", "Answer: B. Paris", "So:\n(B) Paris"):
        assert chosen_letter(response, cities) is None
        assert chosen_letter(response.replace("Paris", "London"), cities) == "B"


def test_a_closing_sentence_may_name_the_text_of_an_option() -> None:
    cities = ("Paris", "London", "Rome")

    assert chosen_letter("It is London, not Paris.", cities) == "B"
    assert chosen_letter("It is not London.", cities) is None
    assert chosen_letter("That is Paris or Rome.", cities) is None


def test_letters_after_short_marks_headings_and_eliminations_are_chosen() -> None:
    for response in (
        "Ans: B",
        "Ans. - B",
        "### B",
        "Eliminating A, C and D leaves B.",
        "B is the only true one",
        "B) London",
    ):
        assert chosen_letter(response) == "B"
    for response in ("Eliminating B leaves A, C and D.", "B. This is incorrect", "B is the only false one"):
        assert chosen_letter(response) is None
