"""Arithmetic that a pupil guesses or asks a calculator for, with little care: so much of a tool a base has to have seen
for reinforcement learning to make a habit of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

DIGITS = "0123456789"
TOOL, NO_TOOL = "calculator", "calculate"


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
