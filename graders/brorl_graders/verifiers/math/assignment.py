"""Read answers that give each of several names its value, such as `a = 2, b = 5` and `(a, b) = (2, 5)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain

from brorl_graders.verifiers.math.expression import VARIABLE
from brorl_graders.verifiers.math.kinds import Group, Named, Reading
from brorl_graders.verifiers.math.tokens import Tokens, split, stripped, text_of

ReadOne = Callable[[Tokens], Reading | None]
_NAME = re.compile(rf"{VARIABLE}(?:_\{{\w\}})?")
_INDEX = re.compile(r"_.*")


def read_cases(parts: list[list[Tokens]], read_one: ReadOne, is_one_or_other: bool) -> Reading | None:
    """Read solutions of several names as a list of tuples, or one solution as a tuple with the names.

    `parts` has the equations of each solution. `is_one_or_other`: the word "or" stands between them. None: they are no
    equations for the same names.
    """
    cases = [_assigned(equations, read_one) for equations in parts]
    names = {",".join(sorted(case or ())) for case in cases}
    readings = [read_one(part[0]) for part in parts if len(part) == 1]
    alternatives = [reading for reading in readings if isinstance(reading, Named)]
    if is_one_or_other and len({_INDEX.sub("", reading.name) for reading in alternatives}) > 1:
        return Group("or", tuple(alternatives))
    if "" in names or len(names) > 1:
        cases = [_assigned(list(chain(*parts)), read_one)]
    solutions = [case for case in cases if case is not None]
    if len(solutions) < len(cases) or not solutions:
        return None
    if len(solutions) == 1:
        (values,) = solutions
        return Named(",".join(values), Group("()", tuple(values.values())))
    return Group("", tuple(map(_in_order, solutions)))


def _in_order(values: dict[str, Reading]) -> Group:
    return Group("()", tuple(values[name] for name in sorted(values)))


def read_tuple(tokens: Tokens, read_one: ReadOne) -> Named | Group | None:
    """Read `(a, b) = (2, 5)` as a tuple with names, and `(a, b) = (2, 5), (5, 2)` as a list of tuples."""
    place = tokens.index("=")
    names = [text_of(name) for name in split(tokens[1 : place - 1], ",") or ()]
    is_tuple = tokens[place - 1] == ")" and len(names) > 1 and all(map(_NAME.fullmatch, names))
    group = read_one(tokens[place + 1 :]) if is_tuple else None
    if not isinstance(group, Group):
        return None
    if not group.brackets and all(isinstance(item, Group) and item.brackets == "()" for item in group.items):
        return group
    return Named(",".join(names), group) if group.brackets == "()" and len(names) == len(group.items) else None


def in_the_order_of(names: str, given: Named) -> Group | None:
    """Return the items of an answer with several names in another order of these names. None: the names differ."""
    values = given.reading.items if isinstance(given.reading, Group) else ()
    by_name = dict(zip(given.name.split(","), values, strict=False))
    wanted = names.split(",")
    if sorted(by_name) != sorted(wanted):
        return None
    return Group("()", tuple(by_name[name] for name in wanted))


def _assigned(equations: list[Tokens], read_one: ReadOne) -> dict[str, Reading] | None:
    """Return the value of each name, in the order of the text. None: a text is no such equation, or a name repeats.

    Names that differ in an index, such as `x_1` and `x_2`, may be the roots of one equation, in any order.
    """
    values: dict[str, Reading] = {}
    for equation in equations:
        named = read_one(stripped(equation, "() "))
        if not isinstance(named, Named) or named.name in values or "," in named.name:
            return None
        values[named.name] = named.reading
    bases = {_INDEX.sub("", name) for name in values}
    return values if len(bases) > 1 else None
