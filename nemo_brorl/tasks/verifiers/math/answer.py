"""1 for a mathematically equal answer, by math-verify: fractions and decimals, units, percentages, sets, intervals,
equations.

The answer is looked for in the response without its thinking: in the last `<answer>` tags if there are any, and there,
in this order, in the last `\\boxed{}` (and those that stand with it), or where math-verify finds it at the end ("the
answer is …", the last LaTeX, the last number). A verdict depends on nothing but the two answers, and is kept: most of a
prompt's responses end in one of few answers. Not parsed are whole numbers, intervals and tuples of them, an answer that
is the reference letter for letter, and plain expressions of different values (`value.py`).

math-verify's own time limits are switched off: they are alarm signals, which reach only a main thread and cannot stop
code in C. The deadline of the process that this runs in stops everything.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from nemo_brorl.tasks.verifiers.answer import boxed_answers, extract_answer, without_thinking
from nemo_brorl.tasks.verifiers.math.key import key_of, unmarked
from nemo_brorl.tasks.verifiers.math.notation import in_one_notation
from nemo_brorl.tasks.verifiers.math.number import are_equal, read_number
from nemo_brorl.tasks.verifiers.math.value import are_different, value_of
from nemo_brorl.tasks.verifiers.payload import Payload, accepted_answers, check_answer, check_choice

PLACES = ("anywhere", "boxed", "tags")  # where an answer may stand; the first is the default
MAX_TAIL = 2000  # characters at the end of a response in which an unmarked answer is looked for
_FINAL_ANSWER = re.compile("final answer is", re.IGNORECASE)  # what is said so after a box counts, and the box does not
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
MIN_VALUE = 1e-60  # a value below it may be zero, computed to a hundred digits
VALUELESS = (ArithmeticError, AttributeError, TypeError, ValueError, RuntimeError)  # sympy has no number for it
MAX_EXPONENT_DIGITS = 6
MAX_FACTORIAL_DIGITS = 5
_POWER = re.compile(r"\^\s*\{?\s*(\d+)(?:\s*\^\s*\{?\s*(\d+))?(\s*\^)?")
_FACTORIAL = re.compile(r"(\d+)\s*\)?\s*!")
_SINGLE_BOX = re.compile(r"\\boxed\{(?P<content>(?:(?!\\f?boxed).)*)\}", re.DOTALL)
_BRACKETED = re.compile(r"([(\[])(-?\d{1,17}(?:,-?\d{1,17})+)([)\]])")
_THOUSANDS = re.compile(r",\d{3}(?!\d)")
_SPACING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|[\s$]")
_PERCENT = re.compile(r"\s*\\?%\s*$")  # inside a box math-verify does not read it; outside it takes 28% for 28, as here
_SEPARATED_NUMBER = re.compile(r"-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?|-?\d+,\d+")  # 1 000.5, and 0,5: a number or two
_HAS_MATH = re.compile(r"(?<!\\)\$|\\boxed|\\fbox|\\\(|\\\[")
_PROSE = re.compile(r"(?<![\\\w{])[A-Za-z]{2,}(?:\s+[A-Za-z]{2,}|\s*:)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    yield from check_answer(payload)
    yield from check_choice(payload, "extract", PLACES)


def score(payload: Payload, response: str) -> float:
    """1 when the response's answer equals one of `payload["answer"]`. `payload["extract"]`: where it must stand."""
    place = payload.get("extract", PLACES[0])
    candidate = find_answer(response, place)
    if candidate is None:
        return 0.0
    for reference in accepted_answers(payload):
        if is_equal(reference.strip(), candidate):
            return 1.0
    return 0.0


def answer(payload: Payload, response: str) -> str | None:
    """The response's answer in one spelling (`key.py`); what math-verify finds equal may still be two."""
    place = payload.get("extract", PLACES[0])
    found = find_answer(response, place)
    if not found:
        return None
    tagged = extract_answer(without_thinking(response))
    if tagged is None and not boxed_answers(found):
        found = unmarked(found)
    return key_of(found) if found else None


def load() -> None:
    """Import math-verify and sympy, also what they import when first used, and fill their tables (1 s)."""
    _equal_by_library("x^2+118x+2185", "$(x+23)(x+96)$")
    _equal_by_library("\\sqrt{8}+\\frac{1}{3}", "$3.1$")
    _equal_by_library("(1, 2]", "$\\{1, 2\\}$")
    _equal_by_library("x<3", "$(1,3)$")


def find_answer(response: str, place: str = PLACES[0]) -> str | None:
    """The text that holds the answer, as short as can be told: `\\boxed{…}` if it is boxed. None when there is none at
    that place."""
    shown = without_thinking(response)
    tagged = extract_answer(shown)
    if place == "tags" and tagged is None:
        return None
    text = shown if tagged is None else tagged
    boxes = boxed_answers(text)
    said = -1  # where the last "final answer is" begins
    for match in _FINAL_ANSWER.finditer(text):
        said = match.start()
    if boxes and said < boxes[-1].end:
        written = []
        for box in boxes:
            content = _PERCENT.sub("", box.content).strip()
            written.append(f"\\boxed{{{content}}}")
        return ", ".join(written)
    if place == "boxed":
        return None
    if said < 0:
        return text[-MAX_TAIL:]
    return text[said : said + MAX_TAIL]


@lru_cache(maxsize=65536)
def is_equal(reference: str, candidate: str) -> bool:
    """Whether two answers are equal. `candidate` is what `find_answer` returns."""
    single = _SINGLE_BOX.fullmatch(candidate)
    plain = (single["content"] if single else candidate).strip()
    if plain == reference:
        return True
    if _WHOLE_NUMBER.fullmatch(reference) and _WHOLE_NUMBER.fullmatch(plain):
        return int(reference) == int(plain)
    if len(plain) > MAX_TAIL or is_huge(plain):
        return False
    wanted = read_number(in_one_notation(reference))
    given = read_number(in_one_notation(plain))
    if wanted and given:
        return are_equal(wanted, given)
    one = _bracketed(reference)
    other = _bracketed(plain)
    if one and other and len(one.numbers) == len(other.numbers):
        return one == other
    if one and value_of(plain) is not None:
        return False
    if are_different(reference, plain):
        return False
    return _equal_by_library(reference, candidate)


class _Bracketed(NamedTuple):
    """An interval or tuple of whole numbers."""

    numbers: tuple[int, ...]
    brackets: str


def _bracketed(text: str) -> _Bracketed | None:
    """The interval or tuple of whole numbers in a text, which takes math-verify's parser long; None for others, and
    where a comma may divide thousands."""
    found = _BRACKETED.fullmatch(_SPACING.sub("", text))
    if found is None or _THOUSANDS.search(text):
        return None
    opening, inside, closing = found.groups()
    numbers = tuple(map(int, inside.split(",")))
    brackets = opening + closing
    is_ascending = list(numbers) == sorted(set(numbers))
    is_usual = len(numbers) == 2 or brackets in ("()", "[]")
    if not (is_ascending and is_usual):
        return None
    return _Bracketed(numbers, brackets)


def is_huge(answer: str) -> bool:
    """Whether an answer holds a power or factorial of about a million digits or more, as 9^{9^9}: sympy would write it
    out. Such an answer is right only when it is the reference letter for letter."""
    for factorial in _FACTORIAL.finditer(answer):
        if len(factorial[1]) > MAX_FACTORIAL_DIGITS:
            return True
    return any(_is_huge_power(power) for power in _POWER.finditer(answer))


def _is_huge_power(power: re.Match[str]) -> bool:
    """Of x^exponent, x^(exponent^tower), or a higher tower."""
    exponent, tower, third = power.groups()
    if third is not None:
        return True
    if tower is not None and len(tower) > MAX_EXPONENT_DIGITS:
        return True
    num_digits = math.log10(max(int(exponent), 1))
    if tower is not None:
        num_digits *= int(tower)
    return num_digits > MAX_EXPONENT_DIGITS


def _equal_by_library(reference: str, candidate: str) -> bool:
    from math_verify import verify

    wanted = _parsed(find_answer(reference) or reference)
    given = _parsed(candidate)
    for one, other in product(wanted, given):
        if _has_no_value(one) or _has_no_value(other):
            continue
        if _differ_at_a_point(one, other):
            continue
        if verify(one, other, timeout_seconds=None):
            return True
    return False


def _has_no_value(item: Any) -> bool:
    """Whether an expression divides by zero."""
    from sympy import Expr, nan, zoo

    return isinstance(item, Expr) and item.has(nan, zoo)


def _differ_at_a_point(one: Any, other: Any) -> bool:
    """Whether two expressions have different values where their symbols have some positive ones: then no simplification
    (which takes most of the time) makes them equal. Single symbols, which may be words, and percentages are left to
    math-verify."""
    from sympy import Expr, Symbol
    from sympy.core.expr import UnevaluatedExpr

    for item in (one, other):
        if not isinstance(item, Expr) or isinstance(item, Symbol) or item.has(UnevaluatedExpr):
            return False
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    values = {}
    for index, symbol in enumerate(symbols):
        values[symbol] = 0.61 + 0.17 * index
    try:
        first = complex(one.evalf(15, subs=values))
        second = complex(other.evalf(15, subs=values))
        scale = max(abs(first), abs(second))
        difference = abs(first - second)
    except VALUELESS:
        return False
    if scale < MIN_VALUE:
        return False
    return difference > 1e-6 * scale  # not for nan or inf


@lru_cache(maxsize=16384)
def _parsed(answer: str) -> list[Any]:
    """What math-verify makes of an answer; one that is bare, as `\\frac12` or `(1, 2]`, is LaTeX."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
    targets = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    readings = [answer]
    if _WORDS.fullmatch(answer) and " " in answer:
        readings = [f"$\\text{{{answer}}}$"]
    elif _SEPARATED_NUMBER.fullmatch(answer):
        readings = [answer, f"${answer}$"]
    elif not _HAS_MATH.search(answer) and not _PROSE.search(answer):
        readings = [f"${answer}$"]
    found = []
    for reading in readings:
        found.extend(parse(reading, targets, parsing_timeout=None))
    return found
