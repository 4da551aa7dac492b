"""Sums of several terms worked out step by step, as a pupil with habits of error writes them.

`17 + 25 - 8` becomes `17+25=42-8=34`, as people note it down. A slip is carried on: the next step starts from the wrong
number. Where each habit is drawn for itself, a sum of few steps without carries is usually right and one of many
carries hardly ever, so questions of one task spread over decades of success rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


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
