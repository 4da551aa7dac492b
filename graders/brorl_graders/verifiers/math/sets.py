"""Read sets of real numbers: solved inequalities, unions, `x \\ne 3`, `\\{x : x > 2\\}`, and such conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

from brorl_graders.verifiers.math.expression import VARIABLE
from brorl_graders.verifiers.math.kinds import Expression, Group, Named, Quantity, Reading, Words
from brorl_graders.verifiers.math.relation import read_bounds
from brorl_graders.verifiers.math.value import Value
from brorl_graders.verifiers.math.words import NONE

ReadOne = Callable[[str], Reading | None]
LEAST = Quantity(Value(complex(-math.inf)))
LARGEST = Quantity(Value(complex(math.inf)))
ALL_REALS = Group("()", (LEAST, LARGEST))
ONE_OR_OTHER = re.compile(r"(?<![A-Za-z\\{])or(?![A-Za-z])")
_BOTH = re.compile(r"(?<![A-Za-z\\{])and(?![A-Za-z])")
_REALS = r"\\mathbb\{R\}"
_ALL_REALS = re.compile(
    r"(?:\\text\{)?(?:the set of )?all real(?: number)?s(?:\}|(?P<but> except(?: for)?\}? ?)(?P<left_out>.+))?",
    re.IGNORECASE,
)
_REAL = re.compile(rf"^{VARIABLE}\\in{_REALS}(?: ?(?:,|and|\\text\{{(?:with|where)\}})|(?=\\setminus|$)) ?")
_BUILDER = re.compile(
    rf"\\\{{(?P<name>{VARIABLE})(?:\\in{_REALS})?[:|] ?(?P<condition>.*?)\\\}}"
)
_EXCEPT = re.compile(
    rf"(?:(?P<name>{VARIABLE})\\ne ?|(?:{_REALS}|(?P<base>[(\[][^()\[\]]+[)\]]))(?:\\setminus|-)(?=\\\{{|[(\[]))"
    r"(?P<left_out>.+)"
)
_MEMBER = re.compile(rf"(?:(?P<name>{VARIABLE}(?:_\{{\w\}})?)|\([^()]+\))\\in(?=[(\[\\])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")


def read_intersection(text: str, read_one: ReadOne) -> Reading | None:
    """Read two solved inequalities with "and" between them as one interval. None: the text is something else.

    Values that are left out, as in `x \\ge 3, x \\ne 5`, cut the interval.
    """
    if "\\ne" in text:
        return _without_points(text, read_one)
    parts = _BOTH.split(text)
    if len(parts) != 2:
        return None
    one, other = (read_inequality(part.strip(), read_one) for part in parts)
    if not isinstance(one, Named) or not isinstance(other, Named) or one.name != other.name:
        return None
    ends = [*_finite_ends(one.reading), *_finite_ends(other.reading)]
    if len(ends) != 2 or ends[0][0] == ends[1][0]:
        return None
    (_, opening, low), (_, closing, high) = sorted(ends, key=lambda end: end[0] == "high")
    if not low.value.value.real < high.value.value.real:
        return Words(NONE)
    return Named(one.name, Group(opening + closing, (low, high)))


def _without_points(text: str, read_one: ReadOne) -> Reading | None:
    parts = [part.strip() for part in _BOTH.sub(",", text).split(",") if part.strip()]
    bounds = [part for part in parts if "\\ne" not in part]
    interval: Reading | None = ALL_REALS
    if bounds:
        interval = read_one(bounds[0]) if len(bounds) == 1 else read_intersection(" and ".join(bounds), read_one)
    left_out = [found for found in map(_EXCEPT.fullmatch, parts) if found]
    names = {found["name"] for found in left_out}
    if isinstance(interval, Named):
        names.add(interval.name)
        interval = interval.reading
    union = _cut(interval, [read_one(found["left_out"]) for found in left_out]) if interval else None
    is_whole = len(left_out) + len(bounds) == len(parts) and len(names) == 1
    return Named(names.pop(), union) if union and is_whole else None


def _cut(interval: Reading | None, left_out: list[Reading | None]) -> Group | None:
    """Return an interval without some numbers between its ends. None: they are no such numbers."""
    numbers = [value for value in left_out if isinstance(value, Quantity) and not value.value.has_variables]
    is_interval = isinstance(interval, Group) and len(interval.brackets) == len(interval.items) == 2
    if not isinstance(interval, Group) or not is_interval or not numbers or len(numbers) < len(left_out):
        return None
    numbers.sort(key=lambda number: number.value.value.real)
    ends = [interval.items[0], *numbers, interval.items[1]]
    places = [end.value.value.real for end in ends if isinstance(end, Quantity)]
    if len(places) < len(ends) or any(low >= high for low, high in pairwise(places)):
        return None
    parts = [Group("()", pair) for pair in pairwise(ends)]
    parts[0] = parts[0]._replace(brackets=interval.brackets[0] + ")")
    parts[-1] = parts[-1]._replace(brackets="(" + interval.brackets[1])
    return Group("U", tuple(parts))


def _finite_ends(interval: Reading) -> list[tuple[str, str, Quantity]]:
    """Return the place, bracket and value of each end of an interval that is a number."""
    found = []
    if isinstance(interval, Group) and len(interval.brackets) == len(interval.items) == 2:
        for place, bracket, item in zip(("low", "high"), interval.brackets, interval.items, strict=True):
            if isinstance(item, Quantity) and math.isfinite(item.value.value.real) and not item.value.has_variables:
                found.append((place, bracket, item))
    return found


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
        condition = read_intersection(builder["condition"], read_one) or read_one(builder["condition"])
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
    """Read `x \\ne 3` and `\\mathbb{R} \\setminus \\{3, 5\\}` as a union of open intervals."""
    found = _EXCEPT.fullmatch(text)
    if found is None:
        return None
    interval = read_one(found["left_out"])
    if not found["base"] and isinstance(interval, Group) and interval.brackets in ("()", "(]", "[)", "[]"):
        low, high = interval.items
        closing = ")" if interval.brackets[0] == "[" else "]"
        opening = "(" if interval.brackets[1] == "]" else "["
        return Group("U", (Group("(" + closing, (LEAST, low)), Group(opening + ")", (high, LARGEST))))
    values = [read_one(item.strip()) for item in found["left_out"].removeprefix("\\{").removesuffix("\\}").split(",")]
    union = _cut(read_one(found["base"]) if found["base"] else ALL_REALS, values)
    return Named(found["name"], union) if found["name"] and union else union


def read_alternatives(text: str, read_one: ReadOne) -> Reading | None:
    """Read intervals or solved inequalities with "or" between them as a union. None: the text is something else."""
    parts = ONE_OR_OTHER.split(text)
    if len(parts) < 2:
        return None
    readings = []
    names = set()
    is_endless = False
    for part in parts:
        reading = read_one(part.strip())
        if isinstance(reading, Named):
            names.add(reading.name)
            reading = reading.reading
        else:
            names.add("")
        if not isinstance(reading, Group) or reading.brackets in ("", "{}") or len(reading.items) != 2:
            return None
        is_endless = is_endless or names != {""} or reading.brackets != "()" or "\\infty" in part
        readings.append(reading)
    if len(names) > 1 or not is_endless:
        return None
    union = Group("U", tuple(readings))
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
