"""When two readings of answers are equal, by rules that a data set may set.

- Numbers: as `number.py` and `value.py` say, or up to a relative difference.
- Percent: 50% is 0.5, and by default also 50, as where a question asks "what percent"; two percentages are compared as
  such.
- Units: two that are known must agree, up to a factor; a reference without a unit accepts any, and one with a unit a
  bare number.
- Brackets: `(1,2)`, `[1,2]` and `\\{1,2\\}` are three things; a list without brackets is a set of answers, or a tuple.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from nemo_brorl.tasks.verifiers.math.reading import Group, Named, Numeral, Quantity, Reading, Words
from nemo_brorl.tasks.verifiers.math.value import Value, compare

PERCENT = ("either", "exact")
UNITS = ("agree", "required", "ignore")
MIN_WORD = 4  # letters; a shorter word may be a product of variables
_HUNDREDTH = 100


class Rules(NamedTuple):
    """What a data set holds equal. The first of several values is the default."""

    percent: str = PERCENT[0]  # `exact`: 50% is 0.5 and never 50
    units: str = UNITS[0]  # `required`: a reference's unit must be given; `ignore`: any unit will do
    relative_tolerance: float = 0.0  # of numbers


USUAL = Rules()


def are_equal(
    reference: Reading,
    given: Reading,
    rules: Rules,
) -> bool | None:
    """Whether an answer equals the reference; None where that needs a grammar or symbols."""
    if isinstance(reference, Named) or isinstance(given, Named):
        return _named(reference, given, rules)
    if isinstance(reference, Numeral) or isinstance(given, Numeral):
        return reference == given
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
    rules: Rules,
) -> bool | None:
    """`x = 5` is 5; `x = 5` and `y = 5` need a second look."""
    one = reference
    other = given
    if isinstance(reference, Named):
        one = reference.reading
    if isinstance(given, Named):
        other = given.reading
    if isinstance(reference, Named) and isinstance(given, Named) and reference.name != given.name:
        return None
    return are_equal(one, other, rules)


def _quantities(
    reference: Quantity,
    given: Quantity,
    rules: Rules,
) -> bool | None:
    if rules.units == "required" and reference.unit and not given.unit:
        return False
    one = reference.value
    other = given.value
    if rules.units != "ignore" and reference.unit and given.unit:
        if reference.unit.powers != given.unit.powers:
            return False
        if reference.unit.factor != given.unit.factor:
            one = _scaled(one, reference.unit.factor)
            other = _scaled(other, given.unit.factor)
    if reference.is_percent == given.is_percent:
        return compare(one, other, rules.relative_tolerance)
    if reference.is_percent:
        one = _scaled(one, Fraction(1, _HUNDREDTH))
    else:
        other = _scaled(other, Fraction(1, _HUNDREDTH))
    as_share = compare(one, other, rules.relative_tolerance)
    if as_share or rules.percent == "exact":
        return as_share
    return compare(reference.value, given.value, rules.relative_tolerance)


def _scaled(value: Value, factor: Fraction) -> Value:
    return value._replace(
        value=value.value * factor,
        largest=value.largest * float(factor),
        last_place=value.last_place * factor,
    )


def _words(reference: Reading, given: Reading) -> bool | None:
    """Where one at least is words: short ones may be products of variables."""
    if reference == given:
        return True
    for one in (reference, given):
        if isinstance(one, Words) and len(one.text) >= MIN_WORD:
            return False
    return None


def _groups(
    reference: Group,
    given: Group,
    rules: Rules,
) -> bool | None:
    kinds = {reference.brackets, given.brackets}
    if "U" in kinds:
        is_equal = len(kinds) == 1 and _unordered(reference, given, rules)
        return is_equal or None
    if kinds <= {"", "{}"}:
        return _unordered(reference, given, rules)
    if len(kinds) == 1 or kinds == {"", "()"}:
        return _ordered(reference, given, rules)
    if kinds == {"", "[]"} and not reference.brackets:
        return _ordered(reference, given, rules)
    return None if "" in kinds else False


def _ordered(
    reference: Group,
    given: Group,
    rules: Rules,
) -> bool | None:
    if len(reference.items) != len(given.items):
        return False
    is_open = False
    for one, other in zip(reference.items, given.items, strict=True):
        verdict = are_equal(one, other, rules)
        if verdict is False:
            return False
        is_open = is_open or verdict is None
    return None if is_open else True


def _unordered(
    reference: Group,
    given: Group,
    rules: Rules,
) -> bool | None:
    """As sets: every item of one is among those of the other."""
    is_open = False
    for some, others in ((reference.items, given.items), (given.items, reference.items)):
        for item in some:
            verdict = _is_among(item, others, rules, is_reference=some is reference.items)
            if verdict is False:
                return False
            is_open = is_open or verdict is None
    return None if is_open else True


def _is_among(
    item: Reading,
    others: tuple[Reading, ...],
    rules: Rules,
    is_reference: bool,
) -> bool | None:
    """Whether one of the others equals an item, which is the reference's or the other's."""
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
    rules: Rules,
) -> bool | None:
    """Several answers where the other is one: equal where all of them are that one."""
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
