"""Read answers that need no grammar of LaTeX: quantities, words, numerals of another base, and groups of those.

Groups are tuples, intervals, sets, lists and unions. A reading holds only what is written, and `answer.py` decides
which two of them are equal. Anything else is left to math-verify: a relation, a matrix, a polynomial among several
answers, a comma that may divide thousands.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from brorl_graders.verifiers.math.notation import depth
from brorl_graders.verifiers.math.number_words import SCALES, changes_a_number, read_number_words
from brorl_graders.verifiers.math.relation import read_bounds
from brorl_graders.verifiers.math.units import Unit, read_unit, unknown_unit
from brorl_graders.verifiers.math.value import Value, read_number, read_value, scaled

MAX_LENGTH = 600  # characters
MAX_DEPTH = 30  # levels of brackets
MAX_ITEMS = 64
MIN_NOUN = 3  # letters of a noun after a number and a space; a shorter one may be a product of variables

_OTHERS = re.compile(r"\\text ?\{ ?,? ?(?:and|or),? ?\}|(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z])")
_MIXED = re.compile(r"(-?\d+) ?(?:\\text ?\{ ?and ?\}|and) ?(?:\\frac ?\{ ?(\d+) ?\}\{ ?(\d+) ?\}|(\d+) ?/ ?(\d+))")
_NAME = re.compile(
    r"(?P<name>[A-Za-z](?:_\{?\w\}?)?(?: ?\([a-zA-Z]\))?|[A-Z]{2,3}|m?\\angle ?[A-Z]{1,3}|\\text ?\{[A-Za-z ]+\})"
    r" ?= ?(?=\S)"
)
_ARITHMETIC = re.compile(r"[-+*/^().\d{} ]+")
_APPROXIMATELY = re.compile(
    r"^(?:\\approx|=|\\text ?\{ ?(?:approximately|about|exactly) ?\}|(?:approximately|about|exactly) )+ ?"
)
_NEGATIVE = re.compile(r"^(?:\\text ?\{ ?(?:negative|minus) ?\}|(?:negative|minus)) ?(?=[\d\\.])", re.IGNORECASE)
_RELATION = re.compile(
    r"[<>=]|\\(?:le|ge|ne|in|notin|approx|sim|equiv|pm|mp|to|mid|subset|lt|gt|cap|setminus)(?![A-Za-z])"
)
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_NUMERAL = re.compile(r"\(?(\d[0-9A-Fa-f]*)\)? ?(?:_ ?\{? ?\(?(?:base ?)?(\w+)\)? ?\}?|\(?(?:in )?base (\w+)\)?)")
_ONE_OR_OTHER = re.compile(r"\\text ?\{ ?,? ?or ?\}|(?<![A-Za-z\\{])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])")
_CASE_END = re.compile(rf"(?:{_ONE_OR_OTHER.pattern})|;")
_POINT = re.compile(
    r"(?:\\text ?\{ ?(?:the )?points? ?\} ?|(?:the )?points? |(?P<name>[A-Z](?:_\{?\d\}?|')?) ?=? ?)(?=\()"
)
_CLOCK = re.compile(r"(\d{1,2}:\d\d(?::\d\d)?) ?(?:\\text ?\{ ?)?([ap])\.? ?m\.? ?\}?", re.IGNORECASE)
_RATIO = re.compile(r"(?:[A-Z](?::[A-Z])+ ?= ?)?(\d+(?:\.\d+)?(?: ?(?::|\\text ?\{ ?to ?\}| to ) ?\d+(?:\.\d+)?)+)")
_RATIO_SIGN = re.compile(r":|to")
_TIME = re.compile(r"(?:1?\d|2[0-4]):(?:0\d|[1-5]0)")  # may be a ratio too
_MEMBER = re.compile(r"(?P<name>[A-Za-z](?:_\{?\w\}?)?) ?\\in ?(?=[(\[\\])")
_EMPTY = ("\\emptyset", "\\{\\}", "\\{ \\}")
_NONE = "no solution"
_ENDLESS = "infinitely many"
_BEFORE_A_STATUS = re.compile(
    r"^(?:(?:there (?:is|are|exists?)|(?:the|this|it)(?: [a-z]+){0,2} has|we have|has|have|it"
    r"|(?:the )?(?:limit|value|answer)) (?:(?:is|are) )?)?"
)
_STATUSES = {
    "no solution": _NONE,
    "no solutions": _NONE,
    "no solution exists": _NONE,
    "no solutions exist": _NONE,
    "no such solution": _NONE,
    "none": _NONE,
    "empty set": _NONE,
    "the empty set": _NONE,
    "no real solution": "no real solutions",
    "no real solutions": "no real solutions",
    "no real roots": "no real solutions",
    "no real root": "no real solutions",
    "does not exist": "dne",
    "doesn't exist": "dne",
    "do not exist": "dne",
    "dne": "dne",
    "infinitely many": _ENDLESS,
    "infinitely many solutions": _ENDLESS,
    "infinite solutions": _ENDLESS,
    "infinite number of solutions": _ENDLESS,
    "an infinite number of solutions": _ENDLESS,
    "an infinite number": _ENDLESS,
}
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_PERCENT = re.compile(r" ?(?:%|\\text ?\{ ?(?:%|percent) ?\}|percent(?:age)?|pct)$")
_UNIT_START = re.compile(r" ?(?:\\text ?\{|\^ ?\{? ?\\circ|(?<=[\d}) ])[A-Za-zμΩ]|\\[oO]mega)")
_NOUN = re.compile(r"(?:(?:square|sq|cubic|cu)\.? )?[a-z]{2,}(?:[ -][a-z]{2,})*")
_AFTER_A_NOUN = re.compile(
    r"(?<=[a-z]) (?:long|tall|wide|high|deep|away|old|each|left|altogether|remaining|only|in (?:total|all)"
    r"|of [a-z ]+)$"
)
_SCALE = re.compile(rf"(?:\\text ?\{{ ?)?({'|'.join(SCALES)})(?![A-Za-z])", re.IGNORECASE)
_FUNCTIONS = frozenset(("sin", "cos", "tan", "log", "ln", "sqrt", "exp", "pi", "mod", "to", "or", "and", "not"))
_AMBIGUOUS_COMMA = re.compile(r"\d,\d{3}(?!\d)")
_DECIMAL_COMMA = re.compile(r"-?(?:0|\d{4,}),\d+")  # one number, or two answers
_INFINITE = {"\\infty": math.inf, "+\\infty": math.inf, "-\\infty": -math.inf}
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_OPENING = "([{"
_CLOSING = ")]}"


class Quantity(NamedTuple):
    """A number or plain expression, with a unit or a percent sign if it has one."""

    value: Value
    is_percent: bool = False
    unit: Unit | None = None


class Words(NamedTuple):
    """An answer in words, in lower case."""

    text: str


class Numeral(NamedTuple):
    """A number written in another base, such as `101_2`."""

    digits: str
    base: str


class Ratio(NamedTuple):
    """Two numbers or more with colons between them."""

    parts: tuple[Value, ...]
    is_time: bool  # True: two parts that may be a time of day


class Group(NamedTuple):
    """Several answers, in brackets or without."""

    brackets: str  # `()`, `(]`, …; `{}`: a set; "": a list; `U`: a union
    items: tuple[Reading, ...]


class Named(NamedTuple):
    """An answer with a name, such as `x = 5`."""

    name: str
    reading: Reading


Reading = Quantity | Words | Numeral | Ratio | Group | Named


@lru_cache(maxsize=16384)
def read(text: str) -> Reading | None:
    """Parse an answer in plain LaTeX as a number, words or a group of them. None: that needs a grammar of LaTeX."""
    if not text or len(text) > MAX_LENGTH or depth(text) > MAX_DEPTH:
        return None
    plain = _APPROXIMATELY.sub("", text)
    if "negative" in plain or "minus" in plain or plain[:1].isupper():
        plain = _NEGATIVE.sub("-", plain)
    alternatives = _cases(plain) or _alternatives(plain)
    if alternatives is not None:
        return alternatives
    if "and" in plain or "or" in plain:
        plain = _OTHERS.sub(",", plain)
    return _read(plain)


def read_mixed_number(text: str) -> Quantity | None:
    """Read `2 and 3/4`, which is a mixed number where one number is wanted. None: it is none."""
    found = _MIXED.fullmatch(text)
    if found is None:
        return None
    top, bottom = found[2] or found[4], found[3] or found[5]
    if int(top) >= int(bottom):
        return None
    return _quantity(f"{found[1]} {top}/{bottom}")


def _cases(text: str) -> Group | None:
    """Read several solutions of several names, such as `a=2, b=5; a=3, b=7`, as a list of tuples in order of names."""
    if text.count("=") < 4:
        return None
    tuples = []
    names = set()
    for part in _CASE_END.split(text):
        values: dict[str, Reading] = {}
        for item in _split(_OTHERS.sub(",", part)) or ():
            named = _read(item.strip(" ()"))
            if not isinstance(named, Named) or named.name in values:
                return None
            values[named.name] = named.reading
        ordered = sorted(values)
        names.add(",".join(ordered))
        tuples.append(Group("()", tuple(values[name] for name in ordered)))
    if len(tuples) < 2 or len(names) != 1 or len(tuples[0].items) < 2:
        return None
    return Group("", tuple(tuples))


def _alternatives(text: str) -> Reading | None:
    """Read intervals or solved inequalities with "or" between them as a union. None: the text is something else."""
    if "or" not in text and "\\vee" not in text:
        return None
    parts = _ONE_OR_OTHER.split(text)
    if len(parts) < 2:
        return None
    readings = []
    names = set()
    is_endless = False
    for part in parts:
        reading = _read(part.strip())
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


def _read(text: str) -> Reading | None:
    if _UNION.search(text):
        return _union(text)
    items = _split(text)
    if items is None:
        return None
    if len(items) > 1:
        return _listing(text, items)
    ratio = _ratio(text)
    if ratio is not None:
        return ratio
    plain = _without_steps(text.strip())
    named = _NAME.match(plain)
    if named:
        inner = _unnamed(plain[named.end() :])
        return None if inner is None else Named(named["name"].replace(" ", ""), inner)
    member = _MEMBER.match(plain) if "\\in" in plain else None
    if member:
        inner = _read(plain[member.end() :])
        return Named(member["name"], inner) if isinstance(inner, Group) else None
    return _unnamed(plain)


def _ratio(text: str) -> Ratio | None:
    if ":" not in text and "to" not in text:
        return None
    found = _RATIO.fullmatch(text)
    if found is None:
        return None
    plain = _TEXT.sub(r"\1", found[1]).replace(" ", "")
    parts = tuple(Value(Fraction(part)) for part in _RATIO_SIGN.split(plain))
    return Ratio(parts, _TIME.fullmatch(plain) is not None)


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
        return _inequality(text)
    point = _POINT.match(text) if text[:1] not in "([0123456789-" else None
    if point:
        group = _unnamed(text[point.end() :])
        if isinstance(group, Group) and group.brackets == "()":
            return Named(point["name"], group) if point["name"] else group
    brackets = _brackets(text)
    if brackets is not None:
        return _bracketed(text, brackets)
    return _single(text)


def _inequality(text: str) -> Named | None:
    """Read a solved inequality as a named interval."""
    bounds = read_bounds(text)
    if bounds is None:
        return None
    low = _item(bounds.low or "-\\infty")
    high = _item(bounds.high or "\\infty")
    if not isinstance(low, Quantity) or not isinstance(high, Quantity):
        return None
    return Named(bounds.name, Group(bounds.brackets, (low, high)))


def _single(text: str) -> Reading | None:
    clock = _CLOCK.fullmatch(text) if ":" in text else None
    if clock:
        return Words(f"{clock[1]} {clock[2].lower()}m")
    has_base = "_" in text or "base" in text
    numeral = _NUMERAL.fullmatch(" ".join(_TEXT.sub(r"\1", text).split())) if has_base else None
    if numeral:
        base = numeral[2] or numeral[3]
        return Numeral(numeral[1].lower(), _BASES.get(base.lower(), base))
    return _quantity(text) or _words(text)


def has_changing_words(text: str) -> bool:
    """Return whether words in an answer that is not read may change the numbers next to them."""
    return changes_a_number(_COMMAND.sub(" ", text))


def _words(text: str) -> Words | Quantity | None:
    if text.strip() in _EMPTY:
        return Words(_NONE)
    plain = _TEXT.sub(r"\1", text).strip(" .!()")
    if _WORDS.fullmatch(plain) is None:
        return None
    words = " ".join(plain.lower().split())
    number = read_number_words(words)
    if number is not None:
        return Quantity(Value(number))
    return Words(_status(words) or words)


def _status(words: str) -> str | None:
    """Return the usual words for no solution, infinitely many, or a value that does not exist. None: another text."""
    if words in _STATUSES:
        return _STATUSES[words]
    return _STATUSES.get(_BEFORE_A_STATUS.sub("", words))


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
    """Read a number with a scale or a unit after it, known or not, such as "5 million" or "5 apples"."""
    for start in _UNIT_START.finditer(text):
        value = _value(text[: start.start()].strip())
        if value is None or value.has_variables:
            continue
        name = text[start.start() :].strip()
        scale = _SCALE.match(name)
        if scale:
            value = scaled(value, SCALES[scale[1].lower()])
            name = name[scale.end() :].strip().removeprefix("}")
            if not name:
                return Quantity(value)
        unit = read_unit(name)
        is_letter = len(name) == 1 and not start[0].startswith(" ")  # 5m is a product, as 5x is
        if unit is not None and not is_letter:
            return Quantity(value, unit=unit)
        is_product = "\\" not in start[0] and len(name) < (MIN_NOUN if start[0][0] == " " else MIN_NOUN + 1)
        return None if is_product else _counted(value, name)
    return None


def _counted(value: Value, name: str) -> Quantity | None:
    """Read a number of things of a name that is no known unit. None: the name is not a name of things."""
    plain = _TEXT.sub(r" \1 ", name).strip(" .^2345{}()").lower()
    plain = _AFTER_A_NOUN.sub("", plain)
    if _NOUN.fullmatch(plain) is None or changes_a_number(plain):
        return None
    words = plain.replace(".", "").split()
    if not _FUNCTIONS.isdisjoint(words):
        return None
    if words[-1] in ("unit", "units"):
        return Quantity(value)
    unit = read_unit(plain)
    return Quantity(value, unit=unit or unknown_unit(" ".join(words)))


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
    if not items and brackets == "{}":
        return Words(_NONE)
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
