r"""Read solved inequalities, such as `x \ge 5` and `1 < x < 2`, as intervals.

An inequality is solved if a name stands alone on one side, or in the middle of a chain, and nowhere else. An inequality
that is not solved, such as `2x+1 \ge 11`, may be the question itself, and equals no solved one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brorl_graders.verifiers.math.expression import VARIABLE
from brorl_graders.verifiers.math.tokens import Tokens, split_everywhere, text_of

_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}  # the signs where the sides are exchanged
_RISING = ("<", "\\le")  # the right side is the larger one
_WITH_END = ("\\le", "\\ge")
_NAME = re.compile(rf"{VARIABLE}(?:_\{{\w\}})?(?: ?\([a-z]\))?")
_INDEX = r"(?:_\{(?:[^{}]|\{[^{}]*\})*\})?"
_THING = (
    r"(?:\\text\{[A-Za-z ]+\}(?:[A-Z]{1,4})?|\\(?:Pr|mathbb\{[PE]\})(?= ?[(\[])"
    r"|m?\\(?:angle|overline|triangle) ?\{?[A-Z]{1,3}\}?"
    rf"|\\vec\{{[A-Za-z]{{1,2}}\}}|\|?[A-Z]{{2,4}}\|?|\[[A-Z]{{3,4}}\]|[A-Za-z]|{VARIABLE}"
    rf"|\\?(?:(?:arc)?(?:sin|cos|tan)|gcd|det|dim|deg)(?= ?\()){_INDEX}'*{_INDEX}"
)
NAME = re.compile(  # before the equals sign: `x`, `f'(2)`, `P(A \cap B)`, `\overline{AB}`, `\text{Area}`, `a:b`
    rf"{_THING}(?P<call> ?(?:\([^()]*\)|\[[^\[\]]*\]))?|{_THING}(?:[:/]{_THING})+"
    rf"|\\frac\{{{_THING}\}}\{{{_THING}\}}"
)
_JOINTS = ("and", "or", ",", ";")


class Bounds(NamedTuple):
    """A solved inequality: its two ends, () for an end that is missing, and the kinds of these ends."""

    name: str
    brackets: str  # `()`, `(]`, …; a missing end is open
    low: Tokens
    high: Tokens


def is_inequality(tokens: Tokens) -> bool:
    """Return whether an answer has a sign of comparison other than `=`."""
    return not _TURNED.keys().isdisjoint(tokens)


def is_solved(tokens: Tokens) -> bool:
    """Return whether every inequality in an answer is solved. Conditions of a function by cases are."""
    return "\\begin{cases}" in tokens or all(
        read_bounds(part) is not None or not is_inequality(part) for part in split_at_joints(tokens)
    )


def split_at_joints(tokens: Tokens) -> list[Tokens]:
    """Return the parts of an answer between commas, semicolons, "and" and "or"."""
    return [part for part in split_everywhere(tokens, _JOINTS) if part]


def read_bounds(tokens: Tokens) -> Bounds | None:
    """Return the name and ends of one solved inequality. None: it is none, or it is not solved."""
    signs = [token for token in tokens if token in _TURNED]
    sides = split_everywhere(tokens, _TURNED)
    if not all(sides) or len(signs) not in (1, 2) or len({sign in _RISING for sign in signs}) > 1:
        return None
    if len(signs) == 1 and _NAME.fullmatch(text_of(sides[0])):
        sides.reverse()
        signs = [_TURNED[signs[0]]]
        # `x < 3` is now `3 > x`
    name = text_of(sides[1])
    ends = [sides[0], *sides[2:]]
    if _NAME.fullmatch(name) is None or any(sides[1][0] in end for end in ends):
        return None
    if len(signs) == 1:
        ends.append(())
        signs.append("")
    if signs[0] not in _RISING:
        ends.reverse()
        signs.reverse()
    opening = "[" if signs[0] in _WITH_END else "("
    closing = "]" if signs[1] in _WITH_END else ")"
    return Bounds(name.replace(" ", ""), opening + closing, ends[0], ends[1])
