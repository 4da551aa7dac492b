"""Read answers that need no grammar of LaTeX: quantities, words, numerals of another base, and groups of those.

Groups are tuples, intervals, sets, lists and unions. A reading holds only what is written, and `answer.py` decides
which two of them are equal. Anything else is left to math-verify: a relation, a matrix, a polynomial among several
answers, a comma that may divide thousands.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from brorl_graders.verifiers.math.notation import depth
from brorl_graders.verifiers.math.units import Unit, read_unit
from brorl_graders.verifiers.math.value import Value, read_number, read_value

MAX_LENGTH = 600  # characters
MAX_DEPTH = 30  # levels of brackets
MAX_ITEMS = 64

_OTHERS = re.compile(r"\\text ?\{ ?,? ?(?:and|or),? ?\}|(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z])")
_NAME = re.compile(r"(?P<name>[A-Za-z](?:_\{?\w\}?)?(?: ?\([a-z]\))?) ?= ?(?=\S)")
_ARITHMETIC = re.compile(r"[-+*/^().\d{} ]+")
_APPROXIMATELY = re.compile(
    r"^(?:\\approx|=|\\text ?\{ ?(?:approximately|about|exactly) ?\}|(?:approximately|about|exactly) )+ ?"
)
_RELATION = re.compile(
    r"[<>=]|\\(?:le|ge|ne|in|notin|approx|sim|equiv|pm|mp|to|mid|subset|lt|gt|cap|setminus)(?![A-Za-z])"
)
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_NUMERAL = re.compile(r"(\d[0-9A-Fa-f]*) ?(?:_ ?\{? ?\(?(\w+)\)? ?\}?|\(?base (\w+)\)?)")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_PERCENT = re.compile(r" ?(?:%|\\text ?\{ ?(?:%|percent) ?\}|percent(?:age)?|pct)$")
_UNIT_START = re.compile(r" ?(?:\\text ?\{|\^ ?\{? ?\\circ|(?<=[\d}) ])[A-Za-zμΩ]|\\[oO]mega)")
_UNKNOWN_UNIT = re.compile(r"[A-Za-z]{2,}(?:[ -][A-Za-z]{2,})*")
_FUNCTIONS = frozenset(("sin", "cos", "tan", "log", "ln", "sqrt", "exp", "pi", "mod", "to", "or", "and", "not"))
_AMBIGUOUS_COMMA = re.compile(r"\d,\d{3}(?!\d)")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")  # one number, or two answers
_INFINITE = {"\\infty": math.inf, "+\\infty": math.inf, "-\\infty": -math.inf}
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_OPENING = "([{"
_CLOSING = ")]}"


class Quantity(NamedTuple):
    """A number or plain expression, with a unit or a percent sign if it has one."""

    value: Value
    is_percent: bool = False
    unit: Unit | None = None  # None: no unit, or an unknown one


class Words(NamedTuple):
    """An answer in words, in lower case."""

    text: str


class Numeral(NamedTuple):
    """A number written in another base, such as `101_2`."""

    digits: str
    base: str


class Group(NamedTuple):
    """Several answers, in brackets or without."""

    brackets: str  # `()`, `(]`, …; `{}`: a set; "": a list; `U`: a union
    items: tuple[Reading, ...]


class Named(NamedTuple):
    """An answer with a name, such as `x = 5`."""

    name: str
    reading: Reading


Reading = Quantity | Words | Numeral | Group | Named


@lru_cache(maxsize=16384)
def read(text: str) -> Reading | None:
    """Parse an answer in plain LaTeX as a number, words or a group of them. None: that needs a grammar of LaTeX."""
    if not text or len(text) > MAX_LENGTH or depth(text) > MAX_DEPTH:
        return None
    plain = _APPROXIMATELY.sub("", text)
    return _read(_OTHERS.sub(",", plain))


def _read(text: str) -> Reading | None:
    if _UNION.search(text):
        return _union(text)
    items = _split(text)
    if items is None:
        return None
    if len(items) > 1:
        return _listing(text, items)
    plain = _without_steps(text.strip())
    named = _NAME.match(plain)
    if named:
        inner = _unnamed(plain[named.end() :])
        return None if inner is None else Named(named["name"].replace(" ", ""), inner)
    return _unnamed(plain)


def _without_steps(text: str) -> str:
    """Return a chain of equations without its steps: `x = 3+4 = 7` becomes `x = 7`, and `3+4 = 7` becomes `7`."""
    first, *others = text.split("=")
    if not others:
        return text
    last = others[-1].strip()
    if _ARITHMETIC.fullmatch(first):
        return last
    return f"{first}={last}"


def _unnamed(text: str) -> Reading | None:
    if _RELATION.search(text):
        return None
    brackets = _brackets(text)
    if brackets is not None:
        return _bracketed(text, brackets)
    return _single(text)


def _single(text: str) -> Reading | None:
    numeral = _NUMERAL.fullmatch(_TEXT.sub(r"\1", text))
    if numeral:
        base = numeral[2] or numeral[3]
        return Numeral(numeral[1].lower(), _BASES.get(base.lower(), base))
    return _quantity(text) or _words(text)


def _words(text: str) -> Words | None:
    plain = _TEXT.sub(r"\1", text).strip(" .!()")
    if _WORDS.fullmatch(plain) is None:
        return None
    return Words(" ".join(plain.lower().split()))


def _quantity(text: str) -> Quantity | None:
    value = _value(text)
    if value is not None and not value.has_variables:
        return Quantity(value)
    percent = _PERCENT.search(text)
    if percent:
        part = _value(text[: percent.start()])
        return None if part is None else Quantity(part, is_percent=True)
    return _with_unit(text) or (None if value is None else Quantity(value))


def _value(text: str) -> Value | None:
    number = read_number(text)
    if number is not None:
        return Value(number.value, last_place=number.last_place)
    return read_value(text)


def _with_unit(text: str) -> Quantity | None:
    """Read a number with a unit after it, known or not, such as "5 apples"."""
    for start in _UNIT_START.finditer(text):
        value = _value(text[: start.start()].strip())
        if value is None or value.has_variables:
            continue
        name = text[start.start() :].strip()
        unit = read_unit(name)
        is_letter = len(name) == 1 and not start[0].startswith(" ")  # 5m is a product, as 5x is
        if unit is not None and not is_letter:
            return Quantity(value, unit=unit)
        if _is_unknown_unit(name):
            return Quantity(value)
        return None
    return None


def _is_unknown_unit(name: str) -> bool:
    plain = _TEXT.sub(r" \1 ", name).strip(" .^2345{}()")
    if _UNKNOWN_UNIT.fullmatch(plain) is None:
        return False
    return _FUNCTIONS.isdisjoint(plain.lower().split())


def _union(text: str) -> Group | None:
    """Read a union of intervals and sets in a mathematical answer. None: a part is neither."""
    parts = []
    for part in _UNION.split(text):
        reading = _read(part.strip())
        if not isinstance(reading, Group) or not reading.brackets:
            return None
        parts.append(reading)
    return Group("U", tuple(parts))


def _listing(text: str, items: list[str]) -> Reading | None:
    """Read answers with commas between them, or one number if the commas divide thousands."""
    number = _quantity(text)
    if number is not None:
        return number
    is_nested = ";" in text and "," in text  # maybe a list of pairs
    if is_nested or _AMBIGUOUS_COMMA.search(text) or _DECIMAL_COMMA.fullmatch(text):
        return None
    return _group("", items)


def _brackets(text: str) -> str | None:
    """Return the brackets around a whole text, such as "()" or "{}".

    None: it has none, as in `(x+1)(x+2)`.
    """
    if text.startswith("\\{") and text.endswith("\\}"):
        return "{}"
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]":
        return None
    level = 0
    for character in text[:-1]:
        if character in _OPENING:
            level += 1
        elif character in _CLOSING:
            level -= 1
        if level == 0:
            return None
    return text[0] + text[-1]


def _bracketed(text: str, brackets: str) -> Reading | None:
    width = 2 if brackets == "{}" else 1
    inside = text[width:-width].strip()
    items = _split(inside)
    if not items or _AMBIGUOUS_COMMA.search(text):
        return None
    if len(items) > 1 or brackets == "{}":
        return _group(brackets, items)
    return _single(text)


def _group(brackets: str, items: list[str]) -> Group | None:
    readings = []
    if len(items) > MAX_ITEMS:
        return None
    for item in items:
        reading = _item(item.strip())
        if reading is None:
            return None
        readings.append(reading)
    return Group(brackets, tuple(readings))


def _item(text: str) -> Reading | None:
    compact = text.replace(" ", "")
    if compact in _INFINITE:
        return Quantity(Value(complex(_INFINITE[compact])))
    return _read(text)


def _split(text: str) -> list[str] | None:
    """Split a text at the commas and semicolons outside all brackets. None: a bracket is not closed."""
    parts = []
    level = 0
    start = 0
    for place, character in enumerate(text):
        if character in _OPENING:
            level += 1
        elif character in _CLOSING:
            level -= 1
        elif character in ",;" and level == 0:
            parts.append(text[start:place])
            start = place + 1
        if level < 0:
            return None
    if level:
        return None
    parts.append(text[start:])
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    return [part.strip() for part in parts if part.strip()]
