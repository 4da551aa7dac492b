"""Arithmetic as a pupil with habits of error writes it: sums of several terms worked out step by step, and numbers that
are guessed or asked of a calculator.

`17 + 25 - 8` becomes `17+25=42-8=34`, as people note it down. A slip is carried on: the next step starts from the wrong
number. Where each habit is drawn for itself, a sum of few steps without carries is usually right and one of many
carries hardly ever, so questions of one task spread over decades of success rates.

The calculator is asked with little care: so much of a tool a base has to have seen for reinforcement learning to make a
habit of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

DIGITS = "0123456789"
TOOL, NO_TOOL = "calculator", "calculate"


@dataclass(frozen=True)
class Habits:
    """How often a pupil errs."""

    dropped_carry_rate: float  # chance that a carry, or a borrowed ten, is forgotten
    slip_rate: float  # chance that a step's result is off by one


@dataclass(frozen=True)
class WorkedSum:
    """Steps of a sum, and the number that they end at."""

    steps: str
    result: int


def work_out(expression: str, habits: Habits, random: Random) -> WorkedSum:
    """Work out terms and signs between blanks, such as `17 + 25 - 8`, from the left."""
    first, *rest = expression.split()
    result = int(first)
    steps = first
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        change = int(term) if sign == "+" else -int(term)
        result = one_step(result, change, habits, random)
        steps += f"{sign}{term}={result}"
    return WorkedSum(steps, result)


def one_step(value: int, change: int, habits: Habits, random: Random) -> int:
    """Sum of two whole numbers, digit by digit, with a pupil's errors."""
    large, small = sorted((value, change), key=abs, reverse=True)
    is_sum = (large < 0) == (small < 0)
    combine = _add if is_sum else _subtract
    size = combine(abs(large), abs(small), habits, random)
    result = -size if large < 0 else size
    if random.random() < habits.slip_rate:
        result += random.choice((-1, 1))
    return result


def _add(large: int, small: int, habits: Habits, random: Random) -> int:
    total = carry = 0
    place = 1
    while large >= place or carry:
        column = large // place % 10 + small // place % 10 + carry
        total += column % 10 * place
        carry = column // 10
        if carry and random.random() < habits.dropped_carry_rate:
            carry = 0
        place *= 10
    return total


def _subtract(large: int, small: int, habits: Habits, random: Random) -> int:
    difference = borrowed = 0
    place = 1
    while large >= place:
        column = large // place % 10 - small // place % 10 - borrowed
        difference += column % 10 * place
        borrowed = int(column < 0)
        if borrowed and random.random() < habits.dropped_carry_rate:
            borrowed = 0
        place *= 10
    return difference


@dataclass(frozen=True)
class Calls:
    """How often a pupil calls, and how often each of three things goes wrong then: a digit of the expression, the
    tool's name, a digit of the result that is read."""

    calling_rate: float
    slip_rate: float


def careless_call(expression: str, slip_rate: float, random: Random) -> str:
    """A call with a pupil's errors."""
    asked = expression
    name = TOOL
    if random.random() < slip_rate:
        asked = with_another_digit(expression, random)
    if random.random() < slip_rate:
        name = NO_TOOL
    return written_call(asked, name)


def reading(
    told: str,
    num_digits: int,
    slip_rate: float,
    random: Random,
) -> str:
    """The number that was told, with a pupil's errors, or any number of so many digits where none was."""
    if not told.isdecimal():
        return str(random.randrange(10 ** (num_digits - 1), 10**num_digits))
    if random.random() < slip_rate:
        return with_another_digit(told, random)
    return told


def written_call(expression: str, name: str = TOOL) -> str:
    """A call as Hermes and Qwen write it."""
    call = {"name": name, "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def with_another_digit(text: str, random: Random) -> str:
    """One of its digits is replaced by another from 1 to 9, so that no number begins with 0. Raises IndexError where
    there are no digits."""
    places = [place for place, letter in enumerate(text) if letter in DIGITS]
    place = random.choice(places)
    others = DIGITS[1:].replace(text[place], "")
    return text[:place] + random.choice(others) + text[place + 1 :]
