"""Verdicts on Reasoning Gym answers that the library's own scorers get wrong (version 0.1.25).

Where a scorer rewards what is no answer to the question, or is busy for seconds, and the truth can be decided here, it
is: `RULES` has a function for each such task, which returns a score, or None to leave it to the library.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from nemo_brorl.tasks.verifiers.arithmetic import exact_value, is_antiderivative, numbers_in, uses_only
from nemo_brorl.tasks.verifiers.payload import Payload

Rule = Callable[[Payload, str], float | None]  # payload, answer -> score; None: the library's

TARGET = 24
WRONG_ARITHMETIC = 0.01  # what the library gives for an expression that is not right ...
WRONG_COUNTDOWN = 0.05
COIN_TOLERANCE = 1e-4  # of a probability, the library's ...
COIN_SHARE = 0.01  # ... and at most this share of it: the library takes 0 for 1/16384
MAX_FORMULA = 300  # characters
NUMBER = re.compile(r"[+-]?\d{1,40}(?:\.\d{0,40})?(?:e[+-]?\d{1,2})?|[+-]?\.\d{1,40}", re.IGNORECASE)
FRACTION = re.compile(r"(\d{1,40})\s*/\s*(\d{1,40})")
NOT_A_NUMBER = re.compile(r"nan", re.IGNORECASE)


def game_of_life_halting(payload: Payload, given: str) -> float | None:
    """The library takes any text for the right one of two words."""
    said = given.strip().casefold()
    wanted = str(payload["answer"]).casefold()
    return float(said == wanted)


def complex_arithmetic(payload: Payload, given: str) -> float | None:
    """The library takes nan, whose distance to every number is below any bound, for right."""
    return 0.0 if NOT_A_NUMBER.search(given) else None


def puzzle24(payload: Payload, given: str) -> float | None:
    """The library takes four numbers of the right size, whichever they are, and 24.9 for 24."""
    operators = payload["config"].get("operators", ("+", "-", "*", "/"))
    numbers = payload["metadata"]["numbers"]
    if uses_only(given, operators) and _reaches(given, numbers, TARGET):
        return 1.0
    return WRONG_ARITHMETIC


def countdown(payload: Payload, given: str) -> float | None:
    """The library takes 500.004 for 500."""
    metadata = payload["metadata"]
    if _reaches(given, metadata["numbers"], metadata["target"]):
        return 1.0
    return WRONG_COUNTDOWN if given.strip() else 0.0


def coin_flip(payload: Payload, given: str) -> float | None:
    """The library pays for a common beginning of two numbers, so that 0 earns 0.9, and reads 1e999193359375."""
    value = _probability(given.replace(",", ""))
    if value is None:
        return 0.0
    wanted = Fraction(payload["answer"])
    tolerance = min(COIN_TOLERANCE, COIN_SHARE * wanted)
    return float(abs(value - wanted) <= tolerance)


def prime_factorization(payload: Payload, given: str) -> float | None:
    """The library pays 0.01 for an empty answer, and half for the question's number itself."""
    if not given.strip(" ×\n"):
        return 0.0
    metadata = payload["metadata"]
    number = str(metadata.get("number"))
    is_composite = len(metadata.get("factors", ())) > 1
    if is_composite and given.strip() == number:
        return WRONG_ARITHMETIC
    return None


def integration(payload: Payload, given: str) -> float | None:
    """The library simplifies the difference, which takes SymPy seconds, and fails for some right answers."""
    metadata = payload["metadata"]
    constants = [*string.ascii_letters]
    is_right = is_antiderivative(
        given,
        metadata["integrand"],
        metadata["variable"],
        constants,
    )
    return float(is_right)


def propositional_logic(payload: Payload, given: str) -> float | None:
    """The library takes time that grows with the square of the formula's length."""
    return 0.0 if len(given) > MAX_FORMULA else None


def _reaches(given: str, numbers: list[int], target: int) -> bool:
    """Whether an expression uses each number once and has this value."""
    wanted = Counter(map(Fraction, numbers))
    return numbers_in(given) == wanted and exact_value(given) == target


def _probability(text: str) -> Fraction | None:
    stripped = text.strip()
    if NUMBER.fullmatch(stripped):
        return Fraction(stripped)
    found = FRACTION.fullmatch(stripped)
    if found is None or not int(found[2]):
        return None
    above = int(found[1])
    below = int(found[2])
    return Fraction(above, below)


RULES: dict[str, Rule] = {
    "coin_flip": coin_flip,
    "complex_arithmetic": complex_arithmetic,
    "countdown": countdown,
    "game_of_life_halting": game_of_life_halting,
    "intermediate_integration": integration,
    "prime_factorization": prime_factorization,
    "propositional_logic": propositional_logic,
    "puzzle24": puzzle24,
    "simple_integration": integration,
}
