r"""Read solved inequalities, such as `x \ge 5` and `1 < x < 2`, as intervals.

An inequality is solved if a name stands alone on one side, or in the middle of a chain, and nowhere else. An inequality
that is not solved, such as `2x+1 \ge 11`, may be the question itself, and equals no solved one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brorl_graders.verifiers.math.expression import VARIABLE

_SIGN = re.compile(r"(\\(?:le|ge)(?![A-Za-z])|[<>])")
_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}  # the signs where the sides are exchanged
_RISING = ("<", "\\le")  # the right side is the larger one
_WITH_END = ("\\le", "\\ge")
_NAME = re.compile(rf"(?P<letter>{VARIABLE})(?:_\{{\w\}})?(?: ?\([a-z]\))?")
_INDEX = r"(?:_\{(?:[^{}]|\{[^{}]*\})*\})?"
_THING = (
    r"(?:\\text\{[A-Za-z ]+\}(?:[A-Z]{1,4})?|\\(?:Pr|mathbb\{[PE]\})(?= ?[(\[])"
    r"|m?\\(?:angle|overline|triangle) ?\{?[A-Z]{1,3}\}?"
    rf"|\\vec\{{[A-Za-z]{{1,2}}\}}|\|?[A-Z]{{2,4}}\|?|\[[A-Z]{{3,4}}\]|[A-Za-z]|{VARIABLE}"
    rf"|\\?(?:(?:arc)?(?:sin|cos|tan)|gcd|det|dim|deg)(?= ?\()){_INDEX}'*{_INDEX}"
)
NAME = re.compile(  # before the equals sign: `x`, `f'(2)`, `P(A \cap B)`, `\overline{AB}`, `\text{Area}`, `a:b`
    rf"(?P<name>(?:{_THING}(?P<call> ?\([^()]*\))?|{_THING}(?:[:/]{_THING})+"
    rf"|\\frac\{{{_THING}\}}\{{{_THING}\}})) ?= ?(?=\S)"
)
_JOINT = re.compile(r"(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z])|[,;]")
_LETTER = re.compile(VARIABLE)


class Bounds(NamedTuple):
    """A solved inequality: the texts of its two ends, "" for an end that is missing, and the kinds of these ends."""

    name: str
    brackets: str  # `()`, `(]`, …; a missing end is open
    low: str
    high: str


def is_inequality(text: str) -> bool:
    """Return whether a text in plain LaTeX has a sign of comparison other than `=`."""
    return _SIGN.search(text) is not None


def is_solved(text: str) -> bool:
    """Return whether every inequality in a text is solved. Conditions of a function by cases are."""
    return "{cases}" in text or all(
        read_bounds(part) is not None or not is_inequality(part) for part in split_at_joints(text)
    )


def split_at_joints(text: str) -> list[str]:
    """Return the parts of a text between commas, semicolons, "and" and "or"."""
    return [part for part in _JOINT.split(text) if part.strip()]


def read_bounds(text: str) -> Bounds | None:
    """Return the name and ends of one solved inequality. None: the text is none, or it is not solved."""
    parts = _SIGN.split(text)
    signs = parts[1::2]
    sides = [side.strip() for side in parts[::2]]
    if not all(sides) or len(signs) not in (1, 2) or len({sign in _RISING for sign in signs}) > 1:
        return None
    if len(signs) == 1 and _NAME.fullmatch(sides[0]):
        sides.reverse()
        signs = [_TURNED[signs[0]]]
        # `x < 3` is now `3 > x`
    name = sides[1]
    ends = [sides[0], *sides[2:]]
    found = _NAME.fullmatch(name)
    if found is None or any(found["letter"] in _LETTER.findall(end) for end in ends):
        return None
    if len(signs) == 1:
        ends.append("")
        signs.append("")
    if signs[0] not in _RISING:
        ends.reverse()
        signs.reverse()
    opening = "[" if signs[0] in _WITH_END else "("
    closing = "]" if signs[1] in _WITH_END else ")"
    return Bounds(name.replace(" ", ""), opening + closing, ends[0], ends[1])
