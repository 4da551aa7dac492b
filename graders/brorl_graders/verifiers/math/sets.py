"""Read sets of real numbers: solved inequalities, unions, `x \\ne 3`, `\\{x : x > 2\\}`, and such conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import TypeGuard

from brorl_graders.verifiers.math.expression import VARIABLE
from brorl_graders.verifiers.math.kinds import Expression, Group, Named, Quantity, Reading, Words, unnamed
from brorl_graders.verifiers.math.relation import read_bounds
from brorl_graders.verifiers.math.value import Value
from brorl_graders.verifiers.math.words import NONE

ReadOne = Callable[[str], Reading | None]
LEAST = Quantity(Value(complex(-math.inf)))
LARGEST = Quantity(Value(complex(math.inf)))
ALL_REALS = Group("()", (LEAST, LARGEST))
ONE_OR_OTHER = re.compile(r"(?<![A-Za-z\\{])or(?![A-Za-z])")
_BOTH = re.compile(r"(?<![A-Za-z\\{])and(?![A-Za-z])")
_BOTH_OR_COMMA = re.compile(rf"{_BOTH.pattern}|,")
_REALS = r"\\mathbb\{R\}"
_ALL_REALS = re.compile(
    r"(?:\\text\{)?(?:the set of )?all real(?: number)?s(?:\}|(?P<but> except(?: for)?\}? ?)(?P<left_out>.+))?",
    re.IGNORECASE,
)
_REAL = re.compile(rf"^{VARIABLE}\\in{_REALS}(?: ?(?:,|and|\\text\{{(?:with|where)\}})|(?=\\setminus|$)) ?")
_BUILDER = re.compile(rf"\\\{{(?P<name>{VARIABLE})(?:\\in{_REALS})?[:|] ?(?P<condition>.*?)\\\}}")
_EXCEPT = re.compile(
    rf"(?:(?P<name>{VARIABLE})\\ne ?|(?:{_REALS}|(?P<base>[(\[][^()\[\]]+[)\]]))(?:\\setminus|-)(?=\\\{{|[(\[]))"
    r"(?P<left_out>.+)"
)
_MEMBER = re.compile(rf"(?:(?P<name>{VARIABLE}(?:_\{{\w\}})?)|\([^()]+\))\\in(?=[(\[\\])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")


def read_conditions(text: str, read_one: ReadOne) -> Reading | None:
    """Read conditions of one name with "and" between them as one set. None: the text is something else.

    There may be commas instead where a condition leaves values out, as in `x \\ge 3, x \\ne 5`.
    """
    parts = (_BOTH_OR_COMMA if "\\ne" in text else _BOTH).split(text)
    if len(parts) < 2:
        return None
    readings = [read_one(part.strip()) for part in parts if part.strip()]
    names = {reading.name for reading in readings if isinstance(reading, Named)}
    common: list[Group] | None = [ALL_REALS]
    for reading in readings:
        intervals = _intervals(unnamed(reading))
        common = _common(common, intervals) if common is not None and intervals else None
    if common is None or len(names) != 1:
        return None
    return Named(names.pop(), _set_of(common)) if common else Words(NONE)


def _intervals(reading: Reading | None) -> list[Group] | None:
    """Return the intervals that a set consists of. None: it is no set, or its ends have no order."""
    parts = reading.items if isinstance(reading, Group) and reading.brackets == "U" else (reading,)
    intervals = [part for part in parts if _is_interval(part) and all(map(_has_a_place, part.items))]
    return intervals if len(intervals) == len(parts) else None


def _is_interval(reading: Reading | None) -> TypeGuard[Group]:
    return isinstance(reading, Group) and reading.brackets in ("()", "(]", "[)", "[]") and len(reading.items) == 2


def _has_a_place(reading: Reading | None) -> TypeGuard[Quantity]:
    return isinstance(reading, Quantity) and not reading.value.has_variables


def _common(some: list[Group], others: list[Group]) -> list[Group]:
    """Return the intervals of the numbers that two unions of intervals have in common."""
    found = []
    for pair in product(some, others):
        lower = max(pair, key=lambda part: (_place(part.items[0]), part.brackets[0] == "("))
        upper = min(pair, key=lambda part: (_place(part.items[1]), part.brackets[1] == "]"))
        if _place(lower.items[0]) < _place(upper.items[1]):
            found.append(Group(lower.brackets[0] + upper.brackets[1], (lower.items[0], upper.items[1])))
    return found


def _place(end: Reading) -> Fraction | float:
    assert isinstance(end, Quantity)
    return end.value.value.real


def _set_of(intervals: list[Group]) -> Group:
    return intervals[0] if len(intervals) == 1 else Group("U", tuple(intervals))


def read_set(text: str, read_one: ReadOne) -> Reading | None:
    """Read a set of real numbers that its signs name: all of them, all but some, those with a property, a union.

    None: the text is no such set.
    """
    in_words = _ALL_REALS.fullmatch(text)
    if in_words:
        text = f"\\mathbb{{R}}\\setminus\\{{{in_words['left_out']}\\}}" if in_words["but"] else "\\mathbb{R}"
    if text == "\\mathbb{R}":
        return ALL_REALS
    if "\\" not in text:
        return None
    text = _REAL.sub("", text)
    if not text:
        return ALL_REALS
    builder = _BUILDER.fullmatch(text)
    if builder:
        condition = read_conditions(builder["condition"], read_one) or read_one(builder["condition"])
        return condition if isinstance(condition, Named) and condition.name == builder["name"] else None
    member = _MEMBER.match(text)
    inner = read_one(text[member.end() :]) if member else None
    if member and inner == Words(NONE):
        return inner
    if member and isinstance(inner, Group):
        return Named(member["name"], inner) if member["name"] else inner
    if _UNION.search(text):
        return _union(text, read_one)
    return _all_but(text, read_one)


def _all_but(text: str, read_one: ReadOne) -> Reading | None:
    """Read `x \\ne 3`, `\\mathbb{R}\\setminus\\{3,5\\}` and `\\mathbb{R}\\setminus[2,5]` as unions of intervals."""
    found = _EXCEPT.fullmatch(text)
    if found is None:
        return None
    kept = _intervals(read_one(found["base"]) if found["base"] else ALL_REALS)
    inside = found["left_out"].removeprefix("\\{").removesuffix("\\}")
    is_interval = inside[0] in "(["
    for left_out in [read_one(inside)] if is_interval else map(read_one, inside.split(",")):
        intervals = [Group("[]", (left_out, left_out))] if _has_a_place(left_out) else _intervals(left_out)
        if kept is None or not intervals or len(intervals) > 1:
            return None
        kept = _common(kept, _complement(*intervals))
    if not kept:
        return None
    return Named(found["name"], _set_of(kept)) if found["name"] else _set_of(kept)


def _complement(interval: Group) -> list[Group]:
    low, high = interval.items
    closing, opening = ")]"[interval.brackets[0] == "("], "(["[interval.brackets[1] == ")"]
    return [Group("(" + closing, (LEAST, low)), Group(opening + ")", (high, LARGEST))]


def read_alternatives(text: str, read_one: ReadOne) -> Reading | None:
    """Read intervals or solved inequalities with "or" between them as a union. None: the text is something else."""
    parts = ONE_OR_OTHER.split(text)
    if len(parts) < 2:
        return None
    readings = [read_one(part.strip()) for part in parts]
    names = {reading.name if isinstance(reading, Named) else "" for reading in readings}
    intervals = [item for item in map(unnamed, readings) if _is_interval(item)]
    may_be_points = names == {""} and "\\infty" not in text and all(item.brackets == "()" for item in intervals)
    if len(intervals) < len(parts) or len(names) > 1 or may_be_points:
        return None
    union = Group("U", tuple(intervals))
    name = names.pop()
    return Named(name, union) if name else union


def _union(text: str, read_one: ReadOne) -> Group | None:
    """Read a union of intervals and sets in a mathematical answer. None: a part is neither."""
    parts = []
    for part in _UNION.split(text):
        reading = read_one(part.strip())
        if not isinstance(reading, Group) or not reading.brackets:
            return None
        parts.append(reading)
    return Group("U", tuple(parts))


def read_inequality(text: str, read_one: ReadOne) -> Named | None:
    """Read a solved inequality as a named interval."""
    bounds = read_bounds(text)
    if bounds is None:
        return None
    low = read_one(bounds.low or "-\\infty")
    high = read_one(bounds.high or "\\infty")
    if not isinstance(low, (Quantity, Expression)) or not isinstance(high, (Quantity, Expression)):
        return None
    return Named(bounds.name, Group(bounds.brackets, (low, high)))
