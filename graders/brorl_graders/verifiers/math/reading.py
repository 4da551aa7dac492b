"""Read answers that need no grammar of LaTeX: quantities, words, numerals of another base, and groups of those.

Groups are tuples, intervals, sets, lists and unions. A reading holds only what is written, and `equality.py` decides
which two of them are equal. Anything else is an expression, a relation or a matrix that `expression.py` parses, or is
not read at all.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from itertools import chain

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
from brorl_graders.verifiers.math.quantity import read_plain, read_quantity
from brorl_graders.verifiers.math.relation import NAME
from brorl_graders.verifiers.math.sets import (
    LARGEST,
    LEAST,
    read_alternatives,
    read_conditions,
    read_inequality,
    read_set,
)
from brorl_graders.verifiers.math.tokens import (
    SPACE,
    Tokens,
    is_enclosed,
    joined,
    replaced,
    split,
    split_everywhere,
    stripped,
    text_of,
)
from brorl_graders.verifiers.math.units import Unit, read_unit
from brorl_graders.verifiers.math.value import Value, read_number
from brorl_graders.verifiers.math.words import (
    NONE,
    read_date_or_time,
    read_formula,
    read_number_twice,
    read_numeral,
    read_words,
)

MAX_LENGTH = 600  # tokens
MAX_ITEMS = 64

_OTHERS = ("and", "or")
_JOINTS = frozenset((*_OTHERS, "=", "\\ne"))
_COMMAS = (",", ";")
_ABOUT = ("\\approx", "=", "approximately", "about", "exactly", SPACE)
_NEGATIVE = ("negative", "minus")
_RELATIONS = frozenset(["<", ">", "="])
_RELATION_NAMES = "le ge ne in notin approx sim equiv pm mp to mid subset cap setminus"
_RELATIONS |= {f"\\{name}" for name in _RELATION_NAMES.split()}
_SIGNS = ("\\pm", "\\mp")
_POINT = re.compile(r"(?:\\text\{(?:the )?points?\}|(?:the )?points? ?|(?P<name>[A-Z](?:_\{\d\}|')?) ?=? ?)")
_RATIO = re.compile(r"\d+(?:\.\d+)?(?: ?(?::|to) ?\d+(?:\.\d+)?)+")
_RATIO_SIGN = re.compile(r":|to")
_TIME = re.compile(r"(?:1?\d|2[0-4]):(?:0\d|[1-5]0)")  # may be a ratio too
_ENDLESS_SUM = re.compile(r"[-+*\d ]+(?:\.\.\.)[-+*\d ]+")
_FUNCTION = re.compile(r"[A-Za-z](?: ?\([a-z]\))?=")
_CONDITION = re.compile(r"&|\\text\{,? ?(?:if|for|when|where)\}|if|for|when")
_MATRIX = re.compile(r"\\begin\{[pbB]?matrix\}")
_LOOSE = re.compile(r"\\text|[\\(){} ]")
_CONGRUENCE = re.compile(r"(?:[A-Za-z](?:equiv|=))?(?P<residue>-?\d{1,9})[pb]?mod(?P<modulus>\d{1,9})")
_ONE_LETTER = re.compile(r" ?\([A-Za-z]\)")
_MIXED = re.compile(r"(-?\d+) ?and ?(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))")
_INDIAN = re.compile(r"-?\d{1,2}(?:,\d\d)+,\d{3}")
_COMBINATION = re.compile(r"\(?C ?\([^()]+,[^()]+\)\)?")
_SEVERAL = re.compile(r"_\{[^{}]*,[^{}]*\}$")  # the roots `x_{1,2}`
_DECIMAL_COMMA = re.compile(r"-?(?:0|\d{4,}),\d+")  # one number, or two answers
_OF_AN_ANGLE = ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan")
_INFINITE = {"\\infty": LARGEST, "+\\infty": LARGEST, "-\\infty": LEAST}


@lru_cache(maxsize=16384)
def read(tokens: Tokens) -> Reading | None:
    """Parse an answer as a number, words or a group of them, or else an expression. None: it is not understood."""
    if not tokens or len(tokens) > MAX_LENGTH:
        return None
    tokens = _with_last_comma(_without_start(tokens))
    if "\\begin{cases}" in tokens:
        return _cases(tokens)
    if _JOINTS.isdisjoint(tokens):
        return _read(tokens)
    several = _solutions(tokens) or read_alternatives(tokens, _read) or read_conditions(tokens, _read)
    return several or _read(replaced(tokens, _OTHERS, ","))


def read_in_the_kind_of(reference: Reading | None, tokens: Tokens) -> Reading | None:
    """Read an answer as `read` does, or as one number where only a wanted number tells which of two readings is meant.

    `2 and 3/4` may be a mixed number, `12,34,567` one number, and `C(5,2)` a binomial.
    """
    text = text_of(tokens)
    if isinstance(unnamed(reference), (Quantity, Expression)) and _COMBINATION.fullmatch(text):
        return _expression(tokens)
    if not isinstance(reference, (Quantity, Named)):
        return read(tokens)
    mixed = _MIXED.fullmatch(text)
    if mixed and int(mixed[2] or mixed[4]) < int(mixed[3] or mixed[5]):
        return _number(f"{mixed[1]} {mixed[2] or mixed[4]}/{mixed[3] or mixed[5]}")
    if _INDIAN.fullmatch(text):
        return _number(text.replace(",", ""))
    if _DECIMAL_COMMA.fullmatch(text):
        return _number(text.replace(",", "."))
    return read(tokens)


def _number(text: str) -> Quantity | None:
    number = read_number(text)
    return None if number is None else Quantity(number)


def _without_start(tokens: Tokens) -> Tokens:
    """Return an answer without "about" before it, and with a sign for "negative" before a number."""
    start = 0
    while start < len(tokens) and tokens[start] in _ABOUT:
        start += 1
    if tokens[start : start + 1] and tokens[start].lower() in _NEGATIVE:
        number = stripped(tokens[start + 1 :])
        if number and (number[0][0] in ".\\" or number[0][0].isdecimal()):
            return ("-", *number)
    return tokens[start:]


def _with_last_comma(tokens: Tokens) -> Tokens:
    """Add a comma before dots that follow a whole term at once, as in `1, 4, 9...`."""
    place = tokens.index(DOTS.text) if DOTS.text in tokens else 0
    is_term = place > 0 and tokens[place - 1].isalnum()
    if not is_term or stripped(tokens[: place - 1], (SPACE, "-"))[-1:] != (",",):
        return tokens
    return (*tokens[:place], ",", *tokens[place:])


def _solutions(tokens: Tokens) -> Reading | None:
    """Read values of several names, such as `a=2, b=5; a=3, b=7`, as a tuple with names or a list of tuples."""
    num = tokens.count("=")
    if num < 2:
        return read_tuple(replaced(tokens, _OTHERS, ","), _read) if num and tokens[0] == "(" else None
    cases = split_everywhere(tokens, _OTHERS)
    if len(cases) == 1 or any(case.count("=") < 2 for case in cases):
        cases = split_everywhere(tokens, ("or", ";"))
    parts = [_items(replaced(case, _OTHERS, ",")) or [] for case in cases]
    if not all(parts) or any("=" not in item for item in chain(*parts)):
        return None
    return read_cases(parts, _read, "or" in tokens) if len(parts) > 1 or len(parts[0]) > 1 else None


def _cases(tokens: Tokens) -> Reading | None:
    """Read a function that has a value and a condition in each row. None: it is none."""
    start = tokens.index("\\begin{cases}")
    name = text_of(tokens[:start])
    if tokens[-1] != "\\end{cases}" or (name and not _FUNCTION.fullmatch(name)):
        return None
    rows: list[Group] = []
    for row in split_everywhere(tokens[start + 1 : -1], ("\\\\",)):
        places = [place for place, token in enumerate(row) if _CONDITION.fullmatch(token)]
        ends = zip([-1, *places], [*places, len(row)], strict=True)
        parts = [part for first, end in ends if (part := stripped(row[first + 1 : end], " ,;."))]
        case = _group("()", parts) if parts else Group("()", ())
        if case is None or len(case.items) not in (0, 2):
            return None
        rows.extend([case] if case.items else [])
    group = Group("cases", tuple(rows))
    return Named(name[:-1].replace(" ", ""), group) if name else group


def _congruence(text: str) -> Written | None:
    found = _CONGRUENCE.fullmatch(_LOOSE.sub("", text))
    if found is None or not int(found["modulus"]):
        return None
    return Written(f"{int(found['residue']) % int(found['modulus'])} mod {int(found['modulus'])}")


def _column(tokens: Tokens) -> Group | None:
    inside = stripped(tokens, "() ")
    if not inside or _MATRIX.fullmatch(inside[0]) is None or "&" in inside:
        return None
    rows = split_everywhere(inside[1:-1], ("\\\\",))
    is_whole = inside[-1] == inside[0].replace("begin", "end") and len(rows) > 1
    return _group("|", rows) if is_whole else None


def _read(tokens: Tokens) -> Reading | None:
    text = text_of(tokens)
    if "mod" in text:
        return _congruence(text)
    several = read_set(tokens, _read)
    if several is not None:
        return several
    items = _items(tokens)
    if items is None:
        return None
    if len(items) > 1:
        date = read_date_or_time(text) if len(items) == 2 and items[1][0].isdecimal() else None
        return date or _listing(tokens, items)
    name, plain = _without_steps(tokens)
    named = NAME.fullmatch(text_of(name)) if name else None
    if named is None:
        return _unnamed(joined([name, plain], "=") if name else plain)
    inner = _unnamed(plain)
    is_plain_name = named["call"] is None or _ONE_LETTER.fullmatch(named["call"]) is not None
    is_value = isinstance(inner, Quantity) and not inner.value.has_variables
    if inner is None or not (is_plain_name or is_value):
        return None
    return Named(_SEVERAL.sub("", named[0].replace(" ", "")), inner)


def _ratio(text: str) -> Ratio | None:
    found = _RATIO.fullmatch(text) if ":" in text or "to" in text else None
    if found is None:
        return None
    plain = text.replace(" ", "")
    parts = tuple(Value(Fraction(part)) for part in _RATIO_SIGN.split(plain))
    return Ratio(parts, _TIME.fullmatch(plain) is not None)


def _without_steps(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Return the sides of an equation without steps: `x` and 7 of `x = 3+4 = 7`, and () and 7 of `3+4 = 7`."""
    sides = [side for side in split(tokens, "=") or () if side] if "=" in tokens else []
    if len(sides) < 2:
        return (), stripped(tokens)
    first, *others = sides
    value, end = read_plain(first), read_plain(others[-1])
    if end is not None and end.has_variables:
        return first, joined(others, "=")
    is_step = (value is not None and not value.has_variables) or _ENDLESS_SUM.fullmatch(text_of(first))
    return () if is_step else first, others[-1]


def _unnamed(tokens: Tokens) -> Reading | None:
    start = tokens.index("(") if "(" in tokens else 0
    point = _POINT.fullmatch(text_of(tokens[:start])) if start else None
    if point:
        group = _unnamed(tokens[start:])
        if isinstance(group, Group) and group.brackets == "()":
            return Named(point["name"], group) if point["name"] else group
    brackets = _brackets(tokens)
    if brackets is not None:
        return _column(tokens) or _bracketed(tokens, brackets)
    if not _RELATIONS.isdisjoint(tokens):
        return read_inequality(tokens, _read) or _expression(tokens)
    return _column(tokens) or _single(tokens)


def _single(tokens: Tokens) -> Reading | None:
    text = text_of(tokens)
    if tokens[-1:] == ("\\infty",) and text.replace(" ", "") in _INFINITE:
        return _INFINITE[text.replace(" ", "")]
    if text == DOTS.text:
        return DOTS
    return (
        read_numeral(text)
        or _ratio(text)
        or read_date_or_time(text)
        or read_formula(text)
        or read_number_twice(text)
        or read_quantity(tokens)
        or read_words(text)
        or _expression(tokens)
    )


def _expression(tokens: Tokens) -> Reading | None:
    """Read what only SymPy compares: an expression, a matrix or a relation. `\\pm` gives two of them."""
    if not {*_SIGNS}.isdisjoint(tokens):
        upper, lower = _SIGNS
        plus = _read(replaced(replaced(tokens, (upper,), "+"), (lower,), "-"))
        minus = _read(replaced(replaced(tokens, (upper,), "-"), (lower,), "+"))
        return Group("", (plus, minus)) if plus and minus else None
    plain, unit = _without_unit(tokens)
    try:
        parse(plain)
    except Unreadable:
        return None
    return Expression(plain, unit)


def _without_unit(tokens: Tokens) -> tuple[Tokens, Unit | None]:
    """Return an expression without the unit at its end, and the unit. Degrees are part of an angle."""
    if tokens[-2:] == ("^", "\\circ"):
        is_angle = any(token.removeprefix("\\") in _OF_AN_ANGLE for token in tokens)
        return (tokens, None) if is_angle else (tokens[:-2], read_unit("degrees"))
    unit = read_unit(tokens[-1]) if tokens[-1:] and tokens[-1].startswith("\\text{") else None
    return (tokens[:-1], unit) if unit else (tokens, None)


def is_plain(reading: Reading | None) -> bool:
    """Return whether an answer is read without expressions that only SymPy compares."""
    plain = unnamed(reading)
    if isinstance(plain, Group):
        return all(map(is_plain, plain.items))
    return plain is not None and not isinstance(plain, Expression)


def _listing(tokens: Tokens, items: list[Tokens]) -> Reading | None:
    """Read answers with commas between them, or one number if the commas divide thousands."""
    number = read_quantity(tokens)
    if number is not None:
        return number
    if ";" in tokens and len(split(tokens, ";") or ()) not in (1, len(items)):
        return None  # maybe a list of pairs
    return _group("", items)


def _items(tokens: Tokens) -> list[Tokens] | None:
    """Return the answers between commas and semicolons. None: a bracket is not closed."""
    parts = split(tokens, _COMMAS)
    return None if parts is None else [part for part in parts if part]


def _brackets(tokens: Tokens) -> str | None:
    """Return the brackets around a whole answer, such as "()" or "{}".

    None: it has none, as in `(x+1)(x+2)`.
    """
    if len(tokens) < 2 or tokens[0] not in ("(", "[", "\\{") or not is_enclosed(tokens):
        return None
    brackets = tokens[0][-1] + tokens[-1][-1]
    return brackets if brackets == "{}" or (brackets[0] in "([" and brackets[1] in ")]") else None


def _bracketed(tokens: Tokens, brackets: str) -> Reading | None:
    inside = stripped(tokens[1:-1])
    items = _items(inside)
    if not items:
        return Words(NONE) if brackets == "{}" else None
    if brackets == "{}" and items == [("\\emptyset",)]:
        return None
    if len(items) > 1 or brackets == "{}":
        return _group(brackets, items)
    return _read(inside) if "=" in inside and brackets == "()" else _single(tokens)


def _group(brackets: str, items: list[Tokens]) -> Group | None:
    readings: list[Reading] = []
    if len(items) > MAX_ITEMS:
        return None
    for item in items:
        reading = _read(item)
        if reading is None:
            return None
        if brackets == "{}" and isinstance(reading, Group) and reading.brackets == "{}":
            return None
        is_several = brackets in ("", "{}") and isinstance(reading, Group) and not reading.brackets
        readings.extend(reading.items if is_several and isinstance(reading, Group) else (reading,))
    return Group(brackets, tuple(readings))
