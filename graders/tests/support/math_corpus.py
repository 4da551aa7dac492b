"""Mathematical answers of known truth, by a grammar: values, the ways models write each, and the ways they state it.

Every case is (reference, response, whether it is right, kind). Values are drawn, their notations written down by hand,
and what is wrong is wrong by construction: another value, several values at once, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from graders.tests.support.math_values import VALUES, MathAnswer

SEED = 15


class MathCase(NamedTuple):
    """A response to a mathematical question, with the reference and whether it is right."""

    reference: str
    response: str
    is_right: bool
    kind: str


BOXES = [
    "So the result is \\boxed{{{0}}}.",
    "We have $2+2=4$ and hence $\\boxed{{{0}}}$",
    "\\[\n\\boxed{{ {0} }}\n\\]",
    "<think>maybe 17</think>Step 1: 12.\n\n**Final Answer:** $$\\boxed{{{0}}}$$",
    "<answer>\\boxed{{{0}}}</answer>",
    "<answer>$\\boxed{{{0}.}}$</answer>",
    "\\fbox{{1}} is wrong, as a longer look at all of the cases shows at once.\n\nThe answer is $\\boxed{{{0}}}$.",
]
TAGS = [
    "<answer>{0}</answer>",
    "<think>it is 17?</think> <answer> {0} </answer>",
    "<answer>**{0}**</answer>",
    "Thus 3+4=7.\n<answer>\n{0}\n</answer>",
    "<answer>The answer is {0}.</answer>",
]
FORMULAS = [
    "The answer is ${0}$.",
    "**Answer:** ${0}$",
    "Since $a=2$ the final answer is: $${0}$$",
    "Adding all 12 parts, we find ${0}$.",
    "<answer>${0}$</answer>",
    "### Final Answer\n\n\\({0}\\)",
    "#### ${0}$",
]
PLAIN = ["The answer is {0}.", "Answer: {0}", "**Answer: {0}**", "After 3 steps.\n\n#### {0}", "Final answer: {0}"]
NOTHING = [
    "",
    "\\boxed{}",
    "<answer></answer>",
    "I do not know.",
    "0/0",
    "\\boxed{0/0}",
    "\\boxed{?}",
    "\\boxed{\\ldots}",
]
HEDGES = [
    "\\boxed{{{0}}} or \\boxed{{{1}}}",
    "\\boxed{{{0} \\text{{ or }} {1}}}",
    "$\\boxed{{{0}}}$, $\\boxed{{{1}}}$",
    "<answer>{0} or {1}</answer>",
    "<answer>{0}, {1}</answer>",
    "The answer is {0} or {1}.",
    "\\boxed{{{0}, {1}}}",
    "\\boxed{{\\{{{0}, {1}\\}}}}",
    "\\boxed{{\\ge {0}}}",
    "\\boxed{{\\ne {0}}}",
    "\\boxed{{{0} \\cup {1}}}",
    "\\boxed{{{0} \\pm {1}}}",
    "\\boxed{{[{0}, {1}]}}",
    "<answer>between {0} and {1}</answer>",
    "The answer is ${0}$ or ${1}$.",
]


def right(rng: Random) -> MathCase:
    """Draw a right response."""
    answer = rng.choice(VALUES)(rng)
    return MathCase(rng.choice(answer.same[:3]), state(rng, answer, rng.choice(answer.same)), True, answer.kind)


def wrong(rng: Random) -> MathCase:
    """Draw a response with another value, several values or none."""
    answer = rng.choice(VALUES)(rng)
    form = rng.random()
    if form < 0.1:
        return MathCase(answer.same[0], rng.choice(NOTHING), False, "nothing")
    if form < 0.5:
        number = rng.randint(2, 99)
        given = [str(number), str(number + rng.randint(1, 9))]
        hedge = rng.choice(HEDGES).format(*given)
        return MathCase(given[rng.randint(0, 1)], hedge, False, "hedge")
    return MathCase(answer.same[0], state(rng, answer, rng.choice(answer.other)), False, f"another {answer.kind}")


def state(rng: Random, answer: MathAnswer, text: str) -> str:
    """Draw a response that states this answer."""
    forms = [*BOXES, *TAGS]
    if answer.is_latex:
        forms += FORMULAS
    if "\\" not in text and "," not in text:
        forms += PLAIN
    return rng.choice(forms).format(text)


def cases(num: int, is_right: bool, seed: int = SEED) -> Iterator[MathCase]:
    """Yield `num` right or wrong cases, the same for each seed."""
    rng = Random(f"{seed} {is_right}")
    make = right if is_right else wrong
    for _ in range(num):
        yield make(rng)


def pairs(num: int, seed: int = SEED) -> Iterator[MathCase]:
    """Yield pairs of bare answers: half of equal values, a quarter of near values and a quarter of any two."""
    rng = Random(f"{seed} pairs")
    for _ in range(num):
        answer = rng.choice(VALUES)(rng)
        reference = answer.same[0]
        draw = rng.random()
        if draw < 0.5:
            yield MathCase(rng.choice(answer.same[:3]), rng.choice(answer.same), True, answer.kind)
        elif draw < 0.75:
            yield MathCase(reference, rng.choice(answer.other), False, answer.kind)
        else:
            others = [make for make in VALUES if make(Random(0)).kind != answer.kind]
            other = rng.choice(others)(rng)
            yield MathCase(reference, rng.choice(other.same), False, f"{answer.kind}, {other.kind}")
