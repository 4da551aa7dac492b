"""Draw right and wrong responses of known truth by kind, for the verifiers of mathematics and multiple choice.

A third of the older kinds is held out: their failures are not read while a verifier is mended, only their rates are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from graders.tests.support import kinds_of_algebra, kinds_of_contests, kinds_of_models, kinds_of_numbers, kinds_of_texts
from graders.tests.support.drawn import Drawn

_MODULES = (kinds_of_numbers, kinds_of_algebra, kinds_of_texts, kinds_of_contests, kinds_of_models)
KINDS = {make.__name__: make for module in _MODULES for make in module.ALL}
# They were held out, failed too often, and were read to mend the verifiers.
_READ = {"compound_units", "hedged_numbers", "infinitely_many", "letters_of_other_scripts", "letters_with_reasons"}
_READ |= {"words_with_marks", *(make.__name__ for make in (*kinds_of_contests.ALL, *kinds_of_models.ALL))}
ANY = [
    "\\boxed{%s}",
    "So the result is $\\boxed{%s}$.",
    "\\[\n\\boxed{ %s }\n\\]",
    "<think>17?</think>We find \\boxed{%s}.",
]
ANY += [
    "We add them.\n\n**Final Answer**\n\\[ \\boxed{%s} \\]\n",
    "The final answer is \\boxed{%s}.",
    "<answer>\\boxed{%s}</answer>",
]
LATEX = [
    "The answer is $%s$.",
    "**Answer:** $%s$",
    "<answer>$%s$</answer>",
    "Final answer: \\(%s\\)",
    "So the answer is\n$$%s$$",
]
PLAIN = [
    "The answer is %s.",
    "Answer: %s",
    "**Answer: %s**",
    "2 + 2 = 4.\n\n#### %s",
    "Final answer: %s",
    "<answer>%s</answer>",
]


class Case(NamedTuple):
    """A response with its truth."""

    kind: str
    verifier: str
    payload: dict[str, Any]
    response: str
    is_right: bool


def is_held_out(kind: str) -> bool:
    """Return whether a kind is one of the third whose failures are not read while a verifier is mended."""
    return kind not in _READ and zlib.crc32(kind.encode()) % 3 == 0


def cases(kind: str, num: int, is_right: bool, seed: int) -> Iterator[Case]:
    """Yield `num` right or wrong responses of a kind, the same for each seed."""
    rng = Random(f"{seed} {kind} {is_right}")
    for _ in range(num):
        drawn = KINDS[kind](rng)
        payload = {"answer": rng.choice(drawn.references), **drawn.payload}
        yield Case(kind, drawn.verifier, payload, _response(rng, drawn, is_right), is_right)


def _response(rng: Random, drawn: Drawn, is_right: bool) -> str:
    """Draw a whole response, or an answer and a response around it."""
    answers, responses = (drawn.right, drawn.said) if is_right else (drawn.wrong, drawn.missaid)
    place = rng.randrange(len(answers) + len(responses))
    if place >= len(answers):
        return responses[place - len(answers)]
    answer = answers[place]
    frames = [*ANY, *ANY, *LATEX] if "\\" in answer else [*ANY, *PLAIN]
    return rng.choice(frames).replace("%s", answer)
