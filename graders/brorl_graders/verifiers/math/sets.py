"""Read sets of real numbers: solved inequalities, unions, `x \\ne 3`, `\\{x : x > 2\\}`, and such conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import TypeGuard

from brorl_graders.verifiers.math.expression import VARIABLE, is_variable
from brorl_graders.verifiers.math.kinds import Expression, Group, Named, Quantity, Reading, Words, unnamed
from brorl_graders.verifiers.math.relation import read_bounds
from brorl_graders.verifiers.math.tokens import SPACE, Tokens, split, split_everywhere, stripped, text_of
from brorl_graders.verifiers.math.value import Value
from brorl_graders.verifiers.math.words import NONE

ReadOne = Callable[[Tokens], Reading | None]
LEAST = Quantity(Value(complex(-math.inf)))
LARGEST = Quantity(Value(complex(math.inf)))
ALL_REALS = Group("()", (LEAST, LARGEST))
_REALS = "\\mathbb{R}"
_WITHOUT = ("\\setminus", "-")
_SIGNS = frozenset(("\\notin", _REALS, "\\setminus", "\\{", "\\in", "\\cup", "\\ne"))
_SO_THAT = (",", "and", "\\text{with}", "\\text{where}")
_ALL_REALS = re.compile(
    r"(?:\\text\{)?(?:the set of )?all real(?: number)?s(?P<but> except(?: for)?)?\}?", re.IGNORECASE
)
_MEMBER = re.compile(rf"(?P<name>{VARIABLE}(?:_\{{\w\}})?)|\([^()]+\)")


def read_conditions(tokens: Tokens, read_one: ReadOne) -> Reading | None:
    """Read conditions of one name with "and" between them as one set. None: they are something else.

    There may be commas instead where a condition leaves values out, as in `x \\ge 3, x \\ne 5`.
    """
    parts = split_everywhere(tokens, ("and", ",") if "\\ne" in tokens else ("and",))
    if len(parts) < 2:
        return None
    readings = [read_one(part) for part in parts if part]
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


def read_set(tokens: Tokens, read_one: ReadOne) -> Reading | None:
    """Read a set of real numbers that its signs name: all of them, all but some, those with a property, a union.

    None: the tokens are no such set.
    """
    tokens = _without_reals(_in_signs(tokens))
    if _SIGNS.isdisjoint(tokens):
        return None
    if tokens == (_REALS,):
        return ALL_REALS
    condition = _condition(tokens)
    if condition:
        found = read_conditions(condition, read_one) or read_one(condition)
        return found if isinstance(found, Named) and found.name == tokens[1] else None
    place = tokens.index("\\in") if "\\in" in tokens else 0
    member = _MEMBER.fullmatch(text_of(tokens[:place])) if place else None
    inner = read_one(tokens[place + 1 :]) if member else None
    if member and inner == Words(NONE):
        return inner
    if member and isinstance(inner, Group):
        return Named(member["name"], inner) if member["name"] else inner
    return _union(tokens, read_one) if "\\cup" in tokens else _all_but(tokens, read_one)


def _in_signs(tokens: Tokens) -> Tokens:
    """Write "all real numbers" and "all reals except 3 and 5" in signs."""
    end = 0
    while end < len(tokens) and (tokens[end] == SPACE or tokens[end].isalpha() or tokens[end].startswith("\\text{")):
        end += 1
    found = _ALL_REALS.fullmatch(text_of(stripped(tokens[:end]))) if end else None
    if found is None or (found["but"] is None) == (end < len(tokens)):
        return tokens
    return (_REALS, "\\setminus", "\\{", *tokens[end:], "\\}") if found["but"] else (_REALS,)


def _without_reals(tokens: Tokens) -> Tokens:
    """Return what is said of `x` after `x\\in\\mathbb{R}`, or a set of which `x` is a member."""
    if tokens[1:3] != ("\\in", _REALS) or not is_variable(tokens[0]):
        return tokens
    rest = stripped(tokens[3:])
    if not rest or rest[0] == "\\setminus":
        return (_REALS, *rest)
    return stripped(rest[1:]) if rest[0] in _SO_THAT else tokens


def _condition(tokens: Tokens) -> Tokens:
    """Return the condition of a set such as `\\{x : x > 2\\}`, or () if there is none."""
    if tokens[0] != "\\{" or tokens[-1] != "\\}" or not is_variable(tokens[1]):
        return ()
    rest = tokens[4:-1] if tokens[2:4] == ("\\in", _REALS) else tokens[2:-1]
    return stripped(rest[1:]) if rest and rest[0] in (":", "|") else ()


def _all_but(tokens: Tokens, read_one: ReadOne) -> Reading | None:
    """Read `x \\ne 3`, `x \\notin [2,5]` and `\\mathbb{R}\\setminus\\{3,5\\}` as unions of intervals."""
    is_name = tokens[1:2] in (("\\ne",), ("\\notin",)) and is_variable(tokens[0])
    base, *others = [(_REALS,), stripped(tokens[2:])] if is_name else split(tokens, _WITHOUT) or [()]
    if len(others) != 1 or not others[0] or (not is_name and others[0][0] not in ("\\{", "(", "[")):
        return None
    kept = _intervals(ALL_REALS if base == (_REALS,) else read_one(base))
    inside = stripped(others[0], ("\\{", "\\}"))
    is_interval = inside[:1] in (("(",), ("[",))
    for left_out in map(read_one, [inside] if is_interval else split_everywhere(inside, ",")):
        intervals = [Group("[]", (left_out, left_out))] if _has_a_place(left_out) else _intervals(left_out)
        if kept is None or not intervals or len(intervals) > 1:
            return None
        kept = _common(kept, _complement(*intervals))
    if not kept:
        return None
    return Named(tokens[0], _set_of(kept)) if is_name else _set_of(kept)


def _complement(interval: Group) -> list[Group]:
    low, high = interval.items
    closing, opening = ")]"[interval.brackets[0] == "("], "(["[interval.brackets[1] == ")"]
    return [Group("(" + closing, (LEAST, low)), Group(opening + ")", (high, LARGEST))]


def read_alternatives(tokens: Tokens, read_one: ReadOne) -> Reading | None:
    """Read intervals or solved inequalities with "or" between them as a union. None: they are something else."""
    parts = split_everywhere(tokens, ("or",))
    if len(parts) < 2:
        return None
    readings = [read_one(part) for part in parts]
    names = {reading.name if isinstance(reading, Named) else "" for reading in readings}
    intervals = [item for item in map(unnamed, readings) if _is_interval(item)]
    may_be_points = names == {""} and "\\infty" not in tokens and all(item.brackets == "()" for item in intervals)
    if len(intervals) < len(parts) or len(names) > 1 or may_be_points:
        return None
    union = Group("U", tuple(intervals))
    name = names.pop()
    return Named(name, union) if name else union


def _union(tokens: Tokens, read_one: ReadOne) -> Group | None:
    """Read a union of intervals and sets in a mathematical answer. None: a part is neither."""
    parts = []
    for part in split_everywhere(tokens, ("\\cup",)):
        reading = read_one(part)
        if not isinstance(reading, Group) or not reading.brackets:
            return None
        parts.append(reading)
    return Group("U", tuple(parts))


def read_inequality(tokens: Tokens, read_one: ReadOne) -> Named | None:
    """Read a solved inequality as a named interval."""
    bounds = read_bounds(tokens)
    if bounds is None:
        return None
    low = read_one(bounds.low or ("-", "\\infty"))
    high = read_one(bounds.high or ("\\infty",))
    if not isinstance(low, (Quantity, Expression)) or not isinstance(high, (Quantity, Expression)):
        return None
    return Named(bounds.name, Group(bounds.brackets, (low, high)))
