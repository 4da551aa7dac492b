"""Say whether two answers that were read are equal, by their kinds and by the rules of a data set."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from brorl_graders.verifiers.math.assignment import in_the_order_of
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
from brorl_graders.verifiers.math.lexer import tokens_of
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.sets import LARGEST
from brorl_graders.verifiers.math.tokens import Tokens, joined
from brorl_graders.verifiers.math.units import are_alike
from brorl_graders.verifiers.math.value import Value, compare, scaled
from brorl_graders.verifiers.math.words import ENDLESS

PERCENT = ("either", "exact")
UNITS = ("agree", "required", "ignore")
FORMS = ("done", "any")
LEAST_TERMS = 3  # terms before the dots that two lists of other lengths share at least
MIN_WORD = 4  # letters; a shorter word may be a product of variables
_BRACKETS_IN_ANY_ORDER = {("", ""), ("", "{}"), ("{}", ""), ("{}", "{}"), ("U", "U"), ("U", ""), ("cases", "cases")}
_BRACKETS_ITEM_BY_ITEM = {("|", "()"), ("()", "|"), ("", "()"), ("()", ""), ("", "[]")}
_HUNDREDTH = 100
_ARGUMENT = re.compile(r"\([a-z]\)$")
_TERM = re.compile(r"(?<=^[a-z])\(([kmn])\)$")


class MathRules(NamedTuple):
    """Rules of a data set for when two answers are equal. The default of each is the first possible value."""

    percent: str = PERCENT[0]  # exact: 50% equals 0.5 and never 50
    units: str = UNITS[0]  # required: an answer must give the reference's unit; ignore: units are not compared
    relative_tolerance: float = 0.0  # largest relative difference of equal numbers
    form: str = FORMS[0]  # any: a sum, integral or limit that is left to do equals its value


USUAL = MathRules()


def are_equal(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Return whether a mathematical answer equals the reference answer, as `rules` compare answers.

    Two kinds that no rule here names are different.
    """
    for kinds, compare_kind in _RULES:
        if isinstance(reference, kinds) or isinstance(given, kinds):
            return compare_kind(reference, given, rules)
    return _expressions(reference, given, rules)


def _as_written(reference: Reading, given: Reading, _: MathRules) -> bool:
    return reference == given


def _expressions(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Compare two answers of which at least one is an expression that only SymPy compares."""
    if not _have_like_units(reference, given, rules):
        return False
    one, other = _tokens_of(reference), _tokens_of(given)
    return bool(one) and bool(other) and equal_by_library(one, other)


def _tokens_of(reading: Reading) -> Tokens:
    """Return an answer as the tokens of an expression, or () if it is none."""
    if isinstance(reading, Named):
        inner = _tokens_of(reading.reading)
        return (*tokens_of(reading.name), "=", *inner) if inner else ()
    if isinstance(reading, Group) and reading.brackets == "|":
        rows = joined([*map(_tokens_of, reading.items)], "\\\\")
        return ("\\begin{pmatrix}", *rows, "\\end{pmatrix}")
    if isinstance(reading, Quantity):
        return () if reading.is_percent else tokens_of(reading.value.text)
    if isinstance(reading, Words):
        return tokens_of(reading.text)
    return reading.tokens if isinstance(reading, Expression) else ()


def _named(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Compare two mathematical answers of which at least one names its value, as `x = 5` does.

    `x = 5` equals 5, and the equations `y = 2x` and `x = y/2` are the same.
    """
    one, other = unnamed(reference), unnamed(given)
    assert one is not None and other is not None
    if isinstance(reference, Named) and isinstance(given, Named) and not _are_one_name(reference.name, given.name):
        if "," not in reference.name and "," not in given.name:
            return _expressions(reference, given, rules)
        ordered = in_the_order_of(reference.name, given)
        return ordered is not None and are_equal(one, ordered, rules)
    names = {item.name for item in given.items if isinstance(item, Named)} if isinstance(given, Group) else set()
    if isinstance(reference, Named) and "," in reference.name and names and names != {*reference.name.split(",")}:
        return False
    is_equation = isinstance(one, Expression) or isinstance(other, Expression)
    return are_equal(one, other, rules) or (is_equation and _expressions(reference, given, rules))


def _are_one_name(one: str, other: str) -> bool:
    """Return whether two names are the same. `y(x)` is `y`, and not `y(t)`, and `a(n)` is `a_n`."""
    one, other = (_TERM.sub(r"_{\1}", name) for name in (one, other))
    return one == other or (("(" in one) != ("(" in other) and _ARGUMENT.sub("", one) == _ARGUMENT.sub("", other))


def _ratios(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Compare two answers of which at least one is a ratio. A ratio of two numbers equals their quotient.

    A time of day, such as 2:30, equals only itself.
    """
    if isinstance(reference, Ratio) and isinstance(given, Ratio):
        if reference.is_time or len(reference.parts) != len(given.parts):
            return reference.parts == given.parts
        return _are_proportional(reference.parts, given.parts)
    ratio = reference if isinstance(reference, Ratio) else given
    other = given if ratio is reference else reference
    assert isinstance(ratio, Ratio)
    if isinstance(other, Words):
        return other.text == _on_a_clock(ratio)
    if len(ratio.parts) != 2 or not isinstance(other, Quantity) or not ratio.parts[1].value:
        return False
    if ratio.is_time and ratio is reference:
        return False
    quotient = Quantity(Value(ratio.parts[0].value / ratio.parts[1].value))
    return are_equal(quotient, other, rules) if ratio is reference else are_equal(other, quotient, rules)


def _on_a_clock(ratio: Ratio) -> str:
    """Return a time of 24 hours as one of 12 hours after noon, such as "3:30 pm", or "" if it is none."""
    hour, minute = (int(part.value.real) for part in ratio.parts[:2])
    is_afternoon = len(ratio.parts) == 2 and 12 < hour < 24 and minute < 60
    return f"{hour - 12}:{minute:02} pm" if is_afternoon else ""


def _are_proportional(some: tuple[Value, ...], others: tuple[Value, ...]) -> bool:
    first, *_ = zip(some, others, strict=True)
    for one, other in zip(some, others, strict=True):
        if one.value * first[1].value != other.value * first[0].value:
            return False
    return any(value.value for value in some) == any(value.value for value in others)


def _words(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Compare two answers of which at least one consists of words, which may be a product if they are short."""
    if reference == Words(ENDLESS) and given == LARGEST:
        return True
    texts = [reading.text for reading in (reference, given) if isinstance(reading, Words)]
    return reference == given or (max(map(len, texts)) < MIN_WORD and _expressions(reference, given, rules))


def _quantities(reference: Reading, given: Reading, rules: MathRules) -> bool:
    if not isinstance(reference, Quantity) or not isinstance(given, Quantity):
        return _expressions(reference, given, rules)
    if not _have_like_units(reference, given, rules):
        return False
    if reference.is_percent != given.is_percent:
        return _shares(reference, given, rules)
    one, other = reference.value, given.value
    if rules.units != "ignore" and reference.unit and given.unit and reference.unit.factor != given.unit.factor:
        one, other = scaled(one, reference.unit.factor), scaled(other, given.unit.factor)
    verdict = compare(one, other, rules.relative_tolerance)
    if verdict is not None or not (one.text and other.text):
        return verdict is True
    return equal_by_library(tokens_of(one.text), tokens_of(other.text))


def _have_like_units(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Return whether the units of two answers measure the same, or one has none that must be given."""
    unit, other_unit = (getattr(reading, "unit", None) for reading in (reference, given))
    if rules.units == "required" and unit and not other_unit:
        return False
    return rules.units == "ignore" or not unit or not other_unit or are_alike(unit, other_unit)


def _shares(reference: Quantity, given: Quantity, rules: MathRules) -> bool:
    """Compare a percentage with a number. A number with a unit is none of a share."""
    if rules.units != "ignore" and (reference.unit or given.unit):
        return False
    hundredth = Fraction(1, _HUNDREDTH)
    one = scaled(reference.value, hundredth if reference.is_percent else 1)
    other = scaled(given.value, hundredth if given.is_percent else 1)
    if compare(one, other, rules.relative_tolerance):
        return True
    return rules.percent != "exact" and compare(reference.value, given.value, rules.relative_tolerance) is True


def _groups(reference: Reading, given: Reading, rules: MathRules) -> bool:
    if not isinstance(reference, Group) or not isinstance(given, Group):
        return _group_and_other(reference, given, rules)
    if DOTS in reference.items or DOTS in given.items:
        return _endless(reference, given, rules)
    brackets = (reference.brackets, given.brackets)
    if brackets == ("", "") and not _have_same_counts(reference, given, rules):
        return False
    if brackets in _BRACKETS_IN_ANY_ORDER:
        return _unordered(reference, given, rules)
    # The values of one name, as in `x = -1, 2`, are no point and no interval.
    is_list = not reference.brackets and isinstance(reference.items[0], Named)
    is_ordered = (brackets in _BRACKETS_ITEM_BY_ITEM and not is_list) or reference.brackets == given.brackets
    return is_ordered and _ordered(reference, given, rules)


def _endless(reference: Group, given: Group, rules: MathRules) -> bool:
    """Compare two lists of which at least one leaves terms out. They are equal if they begin and end alike."""
    if DOTS not in reference.items or DOTS not in given.items:
        return False
    place, other = reference.items.index(DOTS), given.items.index(DOTS)
    num = min(place, other)
    if num < LEAST_TERMS and place != other:
        return False
    ends = Group("", reference.items[:num] + reference.items[place + 1 :])
    return _ordered(ends, Group("", given.items[:num] + given.items[other + 1 :]), rules)


def _have_same_counts(reference: Group, given: Group, rules: MathRules) -> bool:
    """Return whether two lists may have each item equally often, if the reference repeats one, as `1, 1, 2` does."""
    if len(set(reference.items)) == len(reference.items):
        return True
    if len(reference.items) != len(given.items):
        return False
    return all(_count(item, reference, rules) == _count(item, given, rules) for item in reference.items)


def _count(item: Reading, group: Group, rules: MathRules) -> int:
    return sum(are_equal(item, other, rules) for other in group.items)


def _ordered(reference: Group, given: Group, rules: MathRules) -> bool:
    if len(reference.items) != len(given.items):
        return False
    return all(are_equal(*pair, rules) for pair in zip(reference.items, given.items, strict=True))


def _unordered(reference: Group, given: Group, rules: MathRules) -> bool:
    """Compare two groups of answers as sets: every item of one group must equal an item of the other group."""
    for item in reference.items:
        if not any(are_equal(item, other, rules) for other in given.items):
            return False
    return all(_equals_any(other, reference, rules) for other in given.items)


def _equals_any(given: Any, reference: Group, rules: MathRules) -> bool:
    return any(are_equal(item, given, rules) for item in reference.items)


def _group_and_other(reference: Reading, given: Reading, rules: MathRules) -> bool:
    """Compare a group of answers with a single answer. They are equal if every item of the group equals it."""
    group = reference if isinstance(reference, Group) else given
    assert isinstance(group, Group)
    if group.brackets in ("", "{}"):
        pairs = [(item, given) if group is reference else (reference, item) for item in group.items]
        return bool(pairs) and all(are_equal(*pair, rules) for pair in pairs)
    return group.brackets == "|" and _expressions(reference, given, rules)


# Which comparison decides where one of two answers is of a kind, in this order.
_RULES: tuple[tuple[type | tuple[type, ...], Callable[[Any, Any, MathRules], bool]], ...] = (
    (Named, _named),
    (Written, _as_written),
    (Ratio, _ratios),
    (Group, _groups),
    (Words, _words),
    (Quantity, _quantities),
)
