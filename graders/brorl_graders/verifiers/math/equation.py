"""Tell equations that give a value from those that are false, still to be solved, or joined by words.

`x = 3+4 = 7` and `f(2) = 7` give 7. `4+4 = 9` is false, `3x = 12` and `a+b = 12` are to be solved, and `x = 3 so y = 7`
gives two values.
"""

from __future__ import annotations

import re
from itertools import pairwise

from brorl_graders.verifiers.math.number_words import changes_a_number
from brorl_graders.verifiers.math.relation import NAME, split_at_joints
from brorl_graders.verifiers.math.tokens import SPACE, Tokens, split, split_everywhere, text_of
from brorl_graders.verifiers.math.value import Value, compare, read_value

ROUNDED = 0.01  # largest relative difference of two steps of which one is a decimal
_NO_LETTER = re.compile(r"\\text\{[^{}]*\}|\\[A-Za-z]+|_\{[^{}]*\}|(?<=[A-Za-z]) ?\([^()]*\)")
_THEN_A_NAME = re.compile(r"^\W*\d.*(?:[A-Za-z]{2,}\}?|\}) ?[A-Za-z]$")  # such as `3\text{so}y`
_OPERATIONS = frozenset(f"\\{name}" for name in ("sum", "prod", "int", "iint", "iiint", "oint", "lim"))
_DERIVATIVE = re.compile(r"\\frac\{(?:d|\\partial)[^{}]*\}\{(?:d|\\partial) ?[A-Za-z]\}")
_PRODUCT = re.compile(r"(?<![A-Za-z])[a-z]{2}(?![A-Za-z])")
_OPERATORS = frozenset(("-", "+", "*", "/", "^", "√", "∛", "\\frac", "\\cdot", "\\times", "\\pm", "sqrt", "cbrt"))


def is_no_answer(tokens: Tokens) -> bool:
    """Return whether one of several equations is false, or words other than "and" and "or" join two of them."""
    return any(map(_is_false_or_joined, split_at_joints(tokens)))


def _is_false_or_joined(tokens: Tokens) -> bool:
    steps = split_everywhere(tokens, "=")
    if len(steps) < 2:
        return False
    if len(steps) > 2 and any(map(_has_words, steps[1:-1])):
        return True
    values = []
    for step in steps:
        value = read_value(step)
        if value is not None and not value.has_variables:
            values.append(value)
    tolerance = ROUNDED if any("." in token and token[-1].isdecimal() for token in tokens) else 0.0
    return any(differ(one, other, tolerance) for one, other in pairwise(values))


def _has_words(step: Tokens) -> bool:
    """Return whether words in the middle of a chain of equations begin another statement."""
    plain = (SPACE if token[0] == "\\" and token[1:].isalpha() else token for token in step)
    return changes_a_number("".join(plain)) or _THEN_A_NAME.match(text_of(step)) is not None


def has_operation(tokens: Tokens) -> bool:
    """Return whether an answer has a sum, product, integral, limit or derivative that is left to do."""
    if not _OPERATIONS.isdisjoint(tokens):
        return True
    return "\\frac" in tokens and _DERIVATIVE.search(text_of(tokens)) is not None


def without_operation(tokens: Tokens) -> Tokens:
    """Return the value after the last equals sign behind a sum, integral, limit or similar operation."""
    is_operation = tokens[:1] and tokens[0] in _OPERATIONS
    sides = split(tokens, "=") if is_operation else None
    return sides[-1] if sides else tokens


def is_to_be_solved(tokens: Tokens) -> bool:
    """Return whether the left side of an equation is a question, such as `3x = 12` or `a+b = 12`, and no name."""
    left, *others = split_everywhere(tokens, "=")
    text = text_of(left)
    if not others or NAME.fullmatch(text):
        return False
    plain = _NO_LETTER.sub(" ", text)
    has_letter = any(map(str.isalpha, plain))
    is_expression = not _OPERATORS.isdisjoint(left) or _PRODUCT.search(plain) is not None
    return has_letter and (is_expression or any(map(str.isdigit, plain)))


def differ(one: Value, other: Value, tolerance: float) -> bool:
    """Return whether two steps differ by more than a tolerance and half of the last decimal place."""
    place = max(one.last_place, other.last_place)
    if compare(one, other, tolerance) is not False:
        return False
    return not tolerance or abs(complex(one.value) - complex(other.value)) > 0.501 * float(place)
