r"""Read answers with signs of approximate equality, such as `x = 3\pi \approx 9.42`.

Only steps that are known to be close to the last one count. Two answers with such a sign between them are no answer.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from brorl_graders.verifiers.math.equality import FORMS, MathRules, are_equal
from brorl_graders.verifiers.math.equation import ROUNDED, differ
from brorl_graders.verifiers.math.kinds import Expression, Quantity, Reading, unnamed
from brorl_graders.verifiers.math.library import number_by_library
from brorl_graders.verifiers.math.reading import read
from brorl_graders.verifiers.math.tokens import Tokens, split_everywhere
from brorl_graders.verifiers.math.units import DEGREE
from brorl_graders.verifiers.math.value import Value, scaled

_INVERSE = frozenset(("\\arcsin", "\\arccos", "\\arctan"))
_DEGREES_OF_A_RADIAN = Fraction(180 / math.pi)
_CLOSE = MathRules(relative_tolerance=ROUNDED, form=FORMS[1])


def steps_of_an_estimate(tokens: Tokens) -> list[Tokens]:
    """Return the last part of an answer between signs of approximate equality, and those before that are close to it.

    Returns none if two numbers are far apart.
    """
    steps = [step for step in split_everywhere(tokens, ("\\approx",)) if step]
    kept = steps[-1:]
    for one, other in reversed([*pairwise(steps)]):
        is_close = _are_close(one, other)
        if is_close is False:
            return []
        if is_close is None:
            break
        kept.insert(0, one)
    return kept


def _are_close(one: Tokens, other: Tokens) -> bool | None:
    """Return whether two steps are nearly equal. None: they are no numbers."""
    reading, rounded = read(one), read(other)
    if reading is None or rounded is None:
        return None
    if are_equal(reading, rounded, _CLOSE):
        return True
    number, decimal = _number(reading), _number(rounded)
    if number is None or decimal is None:
        return None
    unit, other_unit = (getattr(step, "unit", None) for step in (reading, rounded))
    # An inverse function gives radians, and its estimate is often in degrees, with a sign or without.
    if unit is None and (other_unit == DEGREE or not _INVERSE.isdisjoint(one)):
        return not all(differ(value, decimal, ROUNDED) for value in (number, scaled(number, _DEGREES_OF_A_RADIAN)))
    is_same_unit = None in (unit, other_unit) or unit == other_unit
    return is_same_unit and not differ(number, decimal, ROUNDED)


def _number(reading: Reading) -> Value | None:
    """Return the value of an answer that is one number."""
    plain = unnamed(reading)
    if isinstance(plain, Expression):
        return number_by_library(plain.tokens)
    return plain.value if isinstance(plain, Quantity) and not plain.value.has_variables else None
