"""Mathematics, multiple choice, exact match, instructions, format and compositions of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.attacks.cases import FORM, TAGGED, Case

BOXED = "Thus it is $\\boxed{{{}}}$."
THOUGHT = "<think>Some steps.</think><answer>{}</answer>"
# Right answer, another of its kind.
MATH_ANSWERS = (
    ("73152", "73153"),
    ("\\frac{22}{7}", "\\frac{22}{9}"),
    ("x^2+3x-5", "x^2-3x-5"),
    ("(1, 17]", "(1, 19]"),
    ("\\{2, 19\\}", "\\{2, 23\\}"),
    ("\\sqrt{13}+2", "\\sqrt{11}+2"),
    ("6.63\\times10^{-34}", "9.11\\times10^{-31}"),
    ("37\\%", "39\\%"),
    ("\\begin{pmatrix}31&2\\\\3&47\\end{pmatrix}", "\\begin{pmatrix}31&2\\\\3&41\\end{pmatrix}"),
    ("0.\\overline{142857}", "0.\\overline{27}"),
)
MATH_CONSTANTS = ("0", "1", "-1", "2", "x", "\\emptyset", "\\infty", "0.5")
CHOICES = ("a heron on the bank", "granite", "the second law", "none of these")
LETTERS = "ABCD"
WORDS = (("blue heron", "grey heron"), ("Kestrel 41", "Kestrel 43"))
INSTRUCTIONS: dict[str, Any] = {
    "instruction_id_list": [
        "keywords:existence",
        "detectable_content:number_placeholders",
        "startend:end_checker",
    ],
    "kwargs": [
        {"keywords": ["heron", "granite"]},
        {"num_placeholders": 5},
        {"end_phrase": "That is the whole story."},
    ],
}
FOLLOWED = "A heron on granite: [a] [b] [c] [d] [e]. That is the whole story."
GATED = {"parts": [{"verifier": "format", "options": {"structure": "think_answer"}}, {"verifier": "math"}]}


def text_cases() -> Iterator[Case]:
    """All of them."""
    yield from _math_cases()
    yield from _choice_cases()
    yield from _exact_cases()
    yield from _instruction_cases()
    yield from _format_cases()
    yield from _composite_cases()


def _math_cases() -> Iterator[Case]:
    for number, (truth, other) in enumerate(MATH_ANSWERS):
        yield Case(
            name=f"math/{number}",
            family="math",
            verifier="math",
            payload={"answer": truth},
            right=BOXED.format(truth),
            wrong=BOXED.format(other),
            honest=("", "I do not know.", *map(BOXED.format, MATH_CONSTANTS), *map(TAGGED.format, MATH_CONSTANTS)),
            truth=truth,
            others={other: {"answer": other}},
        )


def _choice_cases() -> Iterator[Case]:
    for letter, choices in (("C", CHOICES), ("B", CHOICES), ("D", ())):
        others: dict[str, Any] = {}
        for other in LETTERS.replace(letter, ""):
            others[other] = {"answer": other, "choices": choices}
        yield Case(
            name=f"multiple_choice/{letter}",
            family="multiple_choice",
            verifier="multiple_choice",
            payload={"answer": letter, "choices": choices} if choices else {"answer": letter},
            right=TAGGED.format(letter),
            wrong=TAGGED.format("A"),
            honest=("", "I do not know.", *map(TAGGED.format, ("A", "E", "a", "1", "I think a heron"))),
            truth=letter,
            others=others if choices else {},
        )


def _exact_cases() -> Iterator[Case]:
    for truth, other in WORDS:
        yield Case(
            name=f"exact_match/{truth}",
            family="exact_match",
            verifier="exact_match",
            payload={"answer": truth},
            right=TAGGED.format(truth),
            wrong=TAGGED.format(other),
            honest=("", "I do not know.", TAGGED.format("0"), TAGGED.format("")),
            truth=truth,
            others={other: {"answer": other}},
        )


def _instruction_cases() -> Iterator[Case]:
    for scoring in ("fraction", "all"):
        yield Case(
            name=f"instruction_following/{scoring}",
            family="instruction_following",
            verifier="instruction_following",
            payload={**INSTRUCTIONS, "scoring": scoring},
            right=FOLLOWED,
            wrong="A heron on granite.",
            honest=("", "I do not know.", "Yes."),
        )


def _format_cases() -> Iterator[Case]:
    right_forms = {
        "think_answer": THOUGHT.format("41"),
        "answer": f"Some steps. {TAGGED.format('41')}",
        "boxed": BOXED.format("41"),
    }
    for structure, right in right_forms.items():
        yield Case(
            name=f"format/{structure}",
            family="format",
            verifier="format",
            payload={"structure": structure},
            right=right,
            wrong="It is 41.",
            honest=("", "I do not know.", "0"),
            material=FORM,
        )


def _composite_cases() -> Iterator[Case]:
    truth, other = MATH_ANSWERS[0]
    well_formed = [THOUGHT.format(constant) for constant in MATH_CONSTANTS]
    for mode in ("product", "sum", "all"):
        yield Case(
            name=f"composite/{mode}",
            family="composite",
            verifier="composite",
            payload={"answer": truth, "mode": mode, **GATED},
            right=THOUGHT.format(truth),
            wrong=THOUGHT.format(other),
            honest=("", "I do not know.", *well_formed),
            truth=truth,
        )
