"""Read answers that need no grammar of LaTeX: quantities, words, numerals of another base, and groups of those.

Groups are tuples, intervals, sets, lists and unions. A reading holds only what is written, and `equality.py` decides
which two of them are equal. Anything else is an expression, a relation or a matrix that `expression.py` parses, or is
not read at all.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from brorl_graders.verifiers.math.assignment import read_cases, read_tuple
from brorl_graders.verifiers.math.expression import Unreadable, parse
from brorl_graders.verifiers.math.kinds import (
    DOTS,
    Expression,
    Group,
    Named,
    Quantity,
    Ratio,
    Reading,
    Words,
    Written,
    unnamed,
)
from brorl_graders.verifiers.math.notation import is_enclosed
from brorl_graders.verifiers.math.quantity import read_plain, read_quantity
from brorl_graders.verifiers.math.relation import NAME
from brorl_graders.verifiers.math.sets import (
    LARGEST,
    LEAST,
    ONE_OR_OTHER,
    read_alternatives,
    read_conditions,
    read_inequality,
    read_set,
)
from brorl_graders.verifiers.math.units import read_unit
from brorl_graders.verifiers.math.value import Value
from brorl_graders.verifiers.math.words import (
    NONE,
    read_date_or_time,
    read_formula,
    read_number_twice,
    read_numeral,
    read_words,
)

MAX_LENGTH = 600  # characters
MAX_DEPTH = 30  # levels of brackets
MAX_ITEMS = 64

_OTHERS = re.compile(r"(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z])")
_MIXED = re.compile(r"(-?\d+) ?and ?(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))")
_APPROXIMATELY = re.compile(r"^(?:\\approx|=|(?:approximately|about|exactly)(?![A-Za-z]))+ ?")
_NEGATIVE = re.compile(r"^(?:negative|minus) ?(?=[\d\\.])", re.IGNORECASE)
_RELATION = re.compile(r"[<>=]|\\(?:le|ge|ne|in|notin|approx|sim|equiv|pm|mp|to|mid|subset|cap|setminus)(?![A-Za-z])")
_CASE_END = re.compile(rf"(?:{ONE_OR_OTHER.pattern})|;")
_POINT = re.compile(r"(?:\\text\{(?:the )?points?\}|(?:the )?points? ?|(?P<name>[A-Z](?:_\{\d\}|')?) ?=? ?)(?=\()")
_RATIO = re.compile(r"\d+(?:\.\d+)?(?: ?(?::|to) ?\d+(?:\.\d+)?)+")
_RATIO_SIGN = re.compile(r":|to")
_TIME = re.compile(r"(?:1?\d|2[0-4]):(?:0\d|[1-5]0)")  # may be a ratio too
_ENDLESS_SUM = re.compile(r"[-+*\d ]+(?:\.\.\.)[-+*\d ]+")
_CASES = re.compile(r"(?:(?P<name>[A-Za-z](?: ?\([a-z]\))?)=)?\\begin\{cases\}(?P<rows>.*)\\end\{cases\}")
_CONDITION = re.compile(r"&|\\text\{,? ?(?:if|for|when|where)\}|(?<![A-Za-z])(?:if|for|when)(?![A-Za-z])")
_LAST_TERM = re.compile(r"(, ?-?\w+)\.\.\.")  # dots that follow a whole term at once
_COLUMN = re.compile(r"\\begin\{([pbB]?matrix)\}(.*)\\end\{\1\}")
_LOOSE = re.compile(r"\\text|[\\(){} ]")
_CONGRUENCE = re.compile(r"(?:[A-Za-z](?:equiv|=))?(?P<residue>-?\d{1,9})[pb]?mod(?P<modulus>\d{1,9})")
_ONE_LETTER = re.compile(r" ?\([A-Za-z]\)")
_INDIAN = re.compile(r"-?\d{1,2}(?:,\d\d)+,\d{3}")
_COMBINATION = re.compile(r"\(?C ?\([^()]+,[^()]+\)\)?")
_GROUPED = re.compile(  # thousands in a list whose other commas have spaces
    r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])(?=[^,;]*[,;] |[^,;]*;)"
    r"|(?<=[,;] )[1-9]\d{0,2}(?:,\d{3})+(?![\d,])"
)
_SEVERAL = re.compile(r"_\{[^{}]*,[^{}]*\}$")  # the roots `x_{1,2}`
_SIGNS = re.compile(r"\\[pm]{2}(?![A-Za-z])")
_UNIT = re.compile(r"(?:\\text\{(?P<unit>[^{}]*)\}|\^\\circ)$")
_OF_AN_ANGLE = re.compile("sin|cos|tan|cot|sec|csc")
_DECIMAL_COMMA = re.compile(r"-?(?:0|\d{4,}),\d+")  # one number, or two answers
_INFINITE = {"\\infty": LARGEST, "+\\infty": LARGEST, "-\\infty": LEAST}
_OPENING = "([{"
_CLOSING = ")]}"


@lru_cache(maxsize=16384)
def read(text: str) -> Reading | None:
    """Parse an answer in plain LaTeX as a number, words or a group of them. None: that needs a grammar of LaTeX."""
    if not text or len(text) > MAX_LENGTH:
        return None
    plain = _LAST_TERM.sub(r"\1,...", _APPROXIMATELY.sub("", text))
    if "{cases}" in plain:
        return _cases(plain)
    if "negative" in plain or "minus" in plain or plain[:1].isupper():
        plain = _NEGATIVE.sub("-", plain)
    if "=" in plain or "or" in plain or "and" in plain or "\\" in plain:
        several = _solutions(plain) or read_alternatives(plain, _read) or read_conditions(plain, _read)
        if several is not None:
            return several
    if "and" in plain or "or" in plain:
        plain = _OTHERS.sub(",", plain)
    return _read(_GROUPED.sub(lambda found: found[0].replace(",", ""), plain) if "," in plain else plain)


def read_in_the_kind_of(reference: Reading | None, text: str) -> Reading | None:
    """Read an answer as `read` does, or as one number where only a wanted number tells which of two readings is meant.

    `2 and 3/4` may be a mixed number, `12,34,567` one number, and `C(5,2)` a binomial.
    """
    if isinstance(unnamed(reference), (Quantity, Expression)) and _COMBINATION.fullmatch(text):
        return _expression(text)
    if not isinstance(reference, (Quantity, Named)) or len(text) > MAX_LENGTH:
        return read(text)
    mixed = _MIXED.fullmatch(text)
    if mixed and int(mixed[2] or mixed[4]) < int(mixed[3] or mixed[5]):
        return read_quantity(f"{mixed[1]} {mixed[2] or mixed[4]}/{mixed[3] or mixed[5]}")
    if _INDIAN.fullmatch(text):
        return read_quantity(text.replace(",", ""))
    if _DECIMAL_COMMA.fullmatch(text):
        return read_quantity(text.replace(",", "."))
    return read(text)


def _solutions(text: str) -> Reading | None:
    """Read values of several names, such as `a=2, b=5; a=3, b=7`, as a tuple with names or a list of tuples."""
    if text.count("=") < 2:
        return read_tuple(_OTHERS.sub(",", text), _read) if text.startswith("(") and "=" in text else None
    parts = []
    several = _OTHERS.split(text)
    is_several = len(several) > 1 and all(part.count("=") > 1 for part in several)
    for part in several if is_several else _CASE_END.split(text):
        items = _split(_OTHERS.sub(",", part))
        if not items or any("=" not in item for item in items):
            return None
        parts.append(items)
    return (
        read_cases(parts, _read, ONE_OR_OTHER.search(text) is not None) if len(parts) > 1 or len(parts[0]) > 1 else None
    )


def _cases(text: str) -> Reading | None:
    """Read a function that has a value and a condition in each row. None: it is none."""
    found = _CASES.fullmatch(text)
    if found is None:
        return None
    rows: list[Group] = []
    for row in found["rows"].split("\\\\"):
        parts = [part.strip(" ,;.") for part in _CONDITION.split(row)]
        case = _group("()", list(filter(None, parts))) if any(parts) else Group("()", ())
        if case is None or len(case.items) not in (0, 2):
            return None
        rows.extend([case] if case.items else [])
    group = Group("cases", tuple(rows))
    return Named(found["name"].replace(" ", ""), group) if found["name"] else group


def _congruence(text: str) -> Written | None:
    found = _CONGRUENCE.fullmatch(_LOOSE.sub("", text))
    if found is None or not int(found["modulus"]):
        return None
    return Written(f"{int(found['residue']) % int(found['modulus'])} mod {int(found['modulus'])}")


def _column(text: str) -> Group | None:
    found = _COLUMN.fullmatch(text.strip("() "))
    rows = found[2].removesuffix("\\\\").split("\\\\") if found and "&" not in text else []
    return _group("|", rows) if len(rows) > 1 else None


def _read(text: str) -> Reading | None:
    if "mod" in text:
        return _congruence(text)
    several = read_set(text, _read)
    if several is not None:
        return several
    items = _split(text)
    if items is None:
        return None
    if len(items) == 2 and items[1][:4].isdecimal() and (date := read_date_or_time(text)):
        return date
    if len(items) > 1:
        return _listing(text, items)
    plain = _without_steps(text.strip())
    named = NAME.match(plain)
    if named:
        inner = _unnamed(plain[named.end() :])
        is_plain_name = named["call"] is None or _ONE_LETTER.fullmatch(named["call"]) is not None
        is_value = isinstance(inner, Quantity) and not inner.value.has_variables
        return (
            Named(_SEVERAL.sub("", named["name"].replace(" ", "")), inner)
            if inner and (is_plain_name or is_value)
            else None
        )
    return _unnamed(plain)


def _ratio(text: str) -> Ratio | None:
    if ":" not in text and "to" not in text:
        return None
    found = _RATIO.fullmatch(text)
    if found is None:
        return None
    plain = text.replace(" ", "")
    parts = tuple(Value(Fraction(part)) for part in _RATIO_SIGN.split(plain))
    return Ratio(parts, _TIME.fullmatch(plain) is not None)


def _without_steps(text: str) -> str:
    """Return a chain of equations without its steps: `x = 3+4 = 7` becomes `x = 7`, and `3+4 = 7` becomes `7`."""
    first, *others = _split(text, "=") or [text]
    if not others:
        return text
    last = others[-1]
    value = read_plain(first.strip())
    end = read_plain(last)
    if end is not None and end.has_variables:
        return text
    if (value is not None and not value.has_variables) or _ENDLESS_SUM.fullmatch(first):
        return last
    return f"{first}={last}"


def _unnamed(text: str) -> Reading | None:
    point = _POINT.match(text) if text[:1] not in "([0123456789-" else None
    if point:
        group = _unnamed(text[point.end() :])
        if isinstance(group, Group) and group.brackets == "()":
            return Named(point["name"], group) if point["name"] else group
    brackets = _brackets(text)
    if brackets is not None:
        return _column(text) or _bracketed(text, brackets)
    if _RELATION.search(text):
        return read_inequality(text, _read) or _expression(text)
    return _column(text) or _single(text)


def _single(text: str) -> Reading | None:
    if "\\infty" in text and text.replace(" ", "") in _INFINITE:
        return _INFINITE[text.replace(" ", "")]
    if text == DOTS.text:
        return DOTS
    return (
        read_numeral(text)
        or _ratio(text)
        or read_date_or_time(text)
        or read_formula(text)
        or read_number_twice(text)
        or read_quantity(text)
        or read_words(text)
        or _expression(text)
    )


def _expression(text: str) -> Reading | None:
    """Read what only SymPy compares: an expression, a matrix or a relation. `\\pm` gives two of them."""
    if _SIGNS.search(text):
        plus = _read(_SIGNS.sub(lambda sign: "+" if sign[0] == "\\pm" else "-", text))
        minus = _read(_SIGNS.sub(lambda sign: "-" if sign[0] == "\\pm" else "+", text))
        return Group("", (plus, minus)) if plus and minus else None
    end = _UNIT.search(text)
    unit = read_unit(end["unit"] or "degrees") if end and (end["unit"] or not _OF_AN_ANGLE.search(text)) else None
    plain = text[: end.start()] if end and unit else text
    try:
        parse(plain)
    except Unreadable:
        return None
    return Expression(plain, unit)


def is_plain(reading: Reading | None) -> bool:
    """Return whether an answer is read without expressions that only SymPy compares."""
    plain = unnamed(reading)
    if isinstance(plain, Group):
        return all(map(is_plain, plain.items))
    return plain is not None and not isinstance(plain, Expression)


def _listing(text: str, items: list[str]) -> Reading | None:
    """Read answers with commas between them, or one number if the commas divide thousands."""
    number = read_quantity(text)
    if number is not None:
        return number
    if len(_split(text, ";") or ()) not in (1, len(items)):
        return None  # maybe a list of pairs
    return _group("", items)


def _brackets(text: str) -> str | None:
    """Return the brackets around a whole text, such as "()" or "{}".

    None: it has none, as in `(x+1)(x+2)`.
    """
    if text.startswith("\\{") and text.endswith("\\}"):
        return "{}"
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]" or not is_enclosed(text):
        return None
    return text[0] + text[-1]


def _bracketed(text: str, brackets: str) -> Reading | None:
    width = 2 if brackets == "{}" else 1
    inside = text[width:-width].strip()
    items = _split(inside)
    if not items and brackets == "{}":
        return Words(NONE)
    if brackets == "{}" and items == ["\\emptyset"]:
        return None
    if not items:
        return None
    if len(items) > 1 or brackets == "{}":
        return _group(brackets, items)
    return _read(inside) if "=" in inside and brackets == "()" else _single(text)


def _group(brackets: str, items: list[str]) -> Group | None:
    readings: list[Reading] = []
    if len(items) > MAX_ITEMS:
        return None
    for item in items:
        reading = _read(item.strip())
        if reading is None:
            return None
        if brackets == "{}" and isinstance(reading, Group) and reading.brackets == "{}":
            return None
        is_several = brackets in ("", "{}") and isinstance(reading, Group) and not reading.brackets
        readings.extend(reading.items if is_several and isinstance(reading, Group) else (reading,))
    return Group(brackets, tuple(readings))


def _split(text: str, signs: str = ",;") -> list[str] | None:
    """Split a text at signs outside all brackets. None: a bracket is not closed, or there are too many levels."""
    parts = []
    level = 0
    start = 0
    for place, character in enumerate(text):
        if character in _OPENING:
            level += 1
        elif character in _CLOSING:
            level -= 1
        elif character in signs and level == 0:
            parts.append(text[start:place])
            start = place + 1
        if not 0 <= level <= MAX_DEPTH:
            return None
    if level:
        return None
    parts.append(text[start:])
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    return [part.strip() for part in parts if part.strip()]
