"""Name the kinds of mathematical answers that are read without a grammar of LaTeX, and what each of them holds."""

from __future__ import annotations

from typing import NamedTuple

from brorl_graders.verifiers.math.tokens import Tokens
from brorl_graders.verifiers.math.units import Unit
from brorl_graders.verifiers.math.value import Value


class Quantity(NamedTuple):
    """A number or plain expression, with a unit or a percent sign if it has one."""

    value: Value
    is_percent: bool = False
    unit: Unit | None = None


class Expression(NamedTuple):
    """An expression, matrix or relation that only SymPy compares, with a unit if it has one."""

    tokens: Tokens
    unit: Unit | None = None


class Words(NamedTuple):
    """An answer in words, in lower case."""

    text: str


class Ratio(NamedTuple):
    """Two numbers or more with colons between them."""

    parts: tuple[Value, ...]
    is_time: bool  # True: two parts that may be a time of day


class Written(NamedTuple):
    """An answer that equals only itself, in one spelling: a numeral `101_2`, a congruence "3 mod 7" or C6H12O6."""

    text: str


class Group(NamedTuple):
    """Several answers, in brackets or without."""

    brackets: str  # `()`, `(]`, …; `{}`: a set; "": a list; `U`: a union; `|`: a column; `cases`
    items: tuple[Reading, ...]


class Named(NamedTuple):
    """An answer with a name, such as `x = 5`, or a tuple with a name for each item, such as `a = 2, b = 5`."""

    name: str  # several names have commas between them
    reading: Reading


DOTS = Written("...")  # terms that a list leaves out
Reading = Quantity | Expression | Words | Ratio | Written | Group | Named


def unnamed(reading: Reading | None) -> Reading | None:
    """Return an answer without its name, such as the 5 of `x = 5`."""
    return reading.reading if isinstance(reading, Named) else reading
