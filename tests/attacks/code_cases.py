"""Exercises in every layout of tests that the verifier of programs knows: kind of test x exercise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.attacks.cases import PROGRAM, Case
from tests.attacks.exercises import EXERCISES, Exercise
from tests.attacks.layouts import ENDS, LAYOUTS, Payload, called

SECONDS = 6.0  # for one response
PRINTING = "stdin"
CONSTANTS = ("None", "0", "True", "''", "[]", "args[0]")


def block(source: str) -> str:
    """A response that is one program."""
    return f"```python\n{source}\n```"


def tagged_block(source: str) -> str:
    """The same in the tags of an answer."""
    return f"<answer>\n{block(source)}\n</answer>"


def constant_program(function: str, constant: str, prints: bool) -> str:
    """A program that returns, or prints, the same whatever it is given."""
    source = f"def {function}(*args):\n    return {constant}\n"
    return source + ENDS[PRINTING].format(function) if prints else source


def code_cases() -> Iterator[Case]:
    """Every exercise in every layout. Few calls are asked for, so that an attack costs little."""
    for kind, layout in LAYOUTS.items():
        for exercise in EXERCISES:
            payload = {**layout(exercise), "timeout_s": SECONDS}
            yield _case(kind, exercise, "code", payload, block)


def gated_cases() -> Iterator[Case]:
    """Exercises whose program must stand in tags."""
    parts = [{"verifier": "format", "options": {"structure": "answer"}}, {"verifier": "code"}]
    for exercise in EXERCISES:
        payload = {**called(exercise), "parts": parts, "mode": "product", "timeout_s": SECONDS}
        yield _case("composite", exercise, "composite", payload, tagged_block)


def _case(
    family: str,
    exercise: Exercise,
    verifier: str,
    payload: Payload,
    place: Callable[[str], str],
) -> Case:
    prints = family == PRINTING
    end = ENDS.get(family, "").format(exercise.function)
    constants = [constant_program(exercise.function, constant, prints) for constant in CONSTANTS]
    return Case(
        name=f"{family}/{exercise.function}",
        family=family,
        verifier=verifier,
        payload=payload,
        right=place(exercise.source + end),
        wrong=place(exercise.wrong_source + end),
        honest=("", "I do not know.", place("pass"), *map(place, constants)),
        material=PROGRAM,
        function=exercise.function,
    )
