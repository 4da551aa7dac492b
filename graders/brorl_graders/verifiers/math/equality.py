"""Say whether two answers that were read are equal, by their kinds and by the rules of a data set."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from brorl_graders.verifiers.math.assignment import in_the_order_of
from brorl_graders.verifiers.math.kinds import (
    Congruence,
    Formula,
    Group,
    Named,
    Numeral,
    Quantity,
    Ratio,
    Reading,
    Words,
)
from brorl_graders.verifiers.math.value import Value, compare, scaled

PERCENT = ("either", "exact")
UNITS = ("agree", "required", "ignore")
FORMS = ("done", "any")
MIN_WORD = 4  # letters; a shorter word may be a product of variables
_HUNDREDTH = 100


class MathRules(NamedTuple):
    """Rules of a data set for when two answers are equal. The default of each is the first possible value."""

    percent: str = PERCENT[0]  # exact: 50% equals 0.5 and never 50
    units: str = UNITS[0]  # required: an answer must give the reference's unit; ignore: units are not compared
    relative_tolerance: float = 0.0  # largest relative difference of equal numbers
    form: str = FORMS[0]  # any: a sum, integral or limit that is left to do equals its value


USUAL = MathRules()


def are_equal(
    reference: Reading,
    given: Reading,
    rules: MathRules,
) -> bool | None:
    """Return whether a mathematical answer equals the reference answer, as `rules` compare answers.

    None: the comparison needs a grammar or symbolic algebra.
    """
    if isinstance(reference, Named) or isinstance(given, Named):
        return _named(reference, given, rules)
    if isinstance(reference, (Numeral, Congruence)) or isinstance(given, (Numeral, Congruence)):
        return reference == given
    if isinstance(reference, Formula) or isinstance(given, Formula):
        return reference == given if isinstance(reference, Formula) and isinstance(given, Formula) else None
    if isinstance(reference, Ratio) or isinstance(given, Ratio):
        return _ratios(reference, given, rules)
    if isinstance(reference, Quantity) and isinstance(given, Quantity):
        return _quantities(reference, given, rules)
    if isinstance(reference, Group) and isinstance(given, Group):
        return _groups(reference, given, rules)
    if isinstance(reference, Group) or isinstance(given, Group):
        return _group_and_other(reference, given, rules)
    return _words(reference, given)


def _named(
    reference: Reading,
    given: Reading,
    rules: MathRules,
) -> bool | None:
    """Compare two mathematical answers of which at least one names its value, as `x = 5` does.

    `x = 5` equals 5. For `x = 5` and `y = 5` the result is None, which leaves them to math-verify.
    """
    one = reference
    other = given
    if isinstance(reference, Named):
        one = reference.reading
    if isinstance(given, Named):
        other = given.reading
    if isinstance(reference, Named) and isinstance(given, Named) and reference.name != given.name:
        if "," not in reference.name and "," not in given.name:
            return None
        ordered = in_the_order_of(reference.name, given)
        if ordered is None:
            return False
        other = ordered
    return are_equal(one, other, rules)


def _ratios(reference: Reading, given: Reading, rules: MathRules) -> bool | None:
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
    if len(ratio.parts) != 2 or not isinstance(other, Quantity) or not ratio.parts[1].value:
        return False
    if ratio.is_time and ratio is reference:
        return False
    quotient = Quantity(Value(ratio.parts[0].value / ratio.parts[1].value))
    return are_equal(quotient, other, rules) if ratio is reference else are_equal(other, quotient, rules)


def _are_proportional(some: tuple[Value, ...], others: tuple[Value, ...]) -> bool:
    first, *_ = zip(some, others, strict=True)
    for one, other in zip(some, others, strict=True):
        if one.value * first[1].value != other.value * first[0].value:
            return False
    return any(value.value for value in some) == any(value.value for value in others)


def _quantities(
    reference: Quantity,
    given: Quantity,
    rules: MathRules,
) -> bool | None:
    if rules.units == "required" and reference.unit and not given.unit:
        return False
    one = reference.value
    other = given.value
    if rules.units != "ignore" and reference.unit and given.unit:
        if reference.unit.powers != given.unit.powers:
            return False
        if reference.unit.factor != given.unit.factor:
            one = scaled(one, reference.unit.factor)
            other = scaled(other, given.unit.factor)
    if (reference.is_percent and given.unit) or (given.is_percent and reference.unit and rules.units != "ignore"):
        return False
    if reference.is_percent == given.is_percent:
        return compare(one, other, rules.relative_tolerance)
    if reference.is_percent:
        one = scaled(one, Fraction(1, _HUNDREDTH))
    else:
        other = scaled(other, Fraction(1, _HUNDREDTH))
    as_share = compare(one, other, rules.relative_tolerance)
    if as_share or rules.percent == "exact":
        return as_share
    return compare(reference.value, given.value, rules.relative_tolerance)


def _words(reference: Reading, given: Reading) -> bool | None:
    """Compare two mathematical answers of which at least one consists of words.

    None: the words are short, and may be products of variables.
    """
    if reference == given:
        return True
    for one in (reference, given):
        if isinstance(one, Words) and len(one.text) >= MIN_WORD:
            return False
    return None


def _groups(
    reference: Group,
    given: Group,
    rules: MathRules,
) -> bool | None:
    kinds = {reference.brackets, given.brackets}
    if "U" in kinds:
        is_list_of_intervals = reference.brackets == "U" and not given.brackets
        is_equal = (len(kinds) == 1 or is_list_of_intervals) and _unordered(reference, given, rules)
        return is_equal or None
    if "|" in kinds:
        is_tuple = reference.brackets == "|" and given.brackets == "()"
        return _ordered(reference, given, rules) if len(kinds) == 1 or is_tuple else False
    if kinds == {""} and not _have_same_counts(reference, given, rules):
        return False
    if kinds <= {"", "{}"}:
        return _unordered(reference, given, rules)
    if len(kinds) == 1 or kinds == {"", "()"}:
        return _ordered(reference, given, rules)
    if kinds == {"", "[]"} and not reference.brackets:
        return _ordered(reference, given, rules)
    return None if "" in kinds else False


def _have_same_counts(reference: Group, given: Group, rules: MathRules) -> bool:
    """Return whether two lists may have each item equally often, if the reference repeats one, as `1, 1, 2` does."""
    if len(set(reference.items)) == len(reference.items):
        return True
    if len(reference.items) != len(given.items):
        return False
    return all(_count(item, reference, rules) == _count(item, given, rules) for item in reference.items)


def _count(item: Reading, group: Group, rules: MathRules) -> int:
    return sum(are_equal(item, other, rules) is True for other in group.items)


def _ordered(
    reference: Group,
    given: Group,
    rules: MathRules,
) -> bool | None:
    if len(reference.items) != len(given.items):
        return False
    pairs = zip(reference.items, given.items, strict=True)
    return _all_of(are_equal(one, other, rules) for one, other in pairs)


def _unordered(
    reference: Group,
    given: Group,
    rules: MathRules,
) -> bool | None:
    """Compare two groups of answers as sets: every item of one group must equal an item of the other group."""
    ours = (_is_among(item, given.items, rules, is_reference=True) for item in reference.items)
    theirs = (_is_among(item, reference.items, rules, is_reference=False) for item in given.items)
    return _all_of(chain(ours, theirs))


def _all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """Return False at the first verdict that is False, else None if one is open, else True."""
    is_open = False
    for verdict in verdicts:
        if verdict is False:
            return False
        is_open = is_open or verdict is None
    return None if is_open else True


def _is_among(
    item: Reading,
    others: tuple[Reading, ...],
    rules: MathRules,
    is_reference: bool,
) -> bool | None:
    """Return whether one answer of a group equals one of several other answers, or None if that cannot be decided.

    `is_reference`: `item` is part of the reference, and `others` are part of the response's answer.
    """
    is_open = False
    for other in others:
        verdict = are_equal(item, other, rules) if is_reference else are_equal(other, item, rules)
        if verdict:
            return True
        is_open = is_open or verdict is None
    return None if is_open else False


def _group_and_other(
    reference: Reading,
    given: Reading,
    rules: MathRules,
) -> bool | None:
    """Compare a group of answers with a single answer. They are equal if every item of the group equals it."""
    verdict: bool | None = True
    if isinstance(reference, Group):
        group = reference
        other = given
    else:
        assert isinstance(given, Group)
        group = given
        other = reference
    if group.brackets in ("", "{}"):
        for item in group.items:
            is_same = are_equal(item, other, rules) if group is reference else are_equal(other, item, rules)
            verdict = verdict and is_same
        return verdict
    return False if isinstance(other, Quantity) else None  # a group in brackets has two items or more
