"""Calls of a calculator: expressions, names and readings go wrong exactly as they are told to."""

from __future__ import annotations

from random import Random

import pytest
from brorl_graders.environments.judged import Calculator
from brorl_graders.environments.tool_calls import ToolCallError, parse_calls
from brorl_lab.bases.demonstrations import careless_call, format_call, read_carelessly, with_another_digit

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "12 * 34"}}</tool_call>'


def test_a_call_is_one_that_the_calculator_takes() -> None:
    assert format_call("12 * 34") == CALL
    (call,) = parse_calls(CALL, "hermes", Calculator.tools)
    assert Calculator().call(call) == "408"


def test_a_careful_pupil_calls_and_reads_what_was_told() -> None:
    assert careless_call("12 * 34", 0.0, Random(1)) == CALL
    assert read_carelessly("408", 3, 0.0, Random(1)) == "408"


def test_a_careless_pupil_asks_for_another_number_of_a_tool_that_there_is_not() -> None:
    asked = careless_call("12 * 34", 1.0, Random(1))
    assert "12 * 34" not in asked
    with pytest.raises(ToolCallError, match="there is no tool 'calculate'"):
        parse_calls(asked, "hermes", Calculator.tools)
    assert read_carelessly("408", 3, 1.0, Random(1)) != "408"


@pytest.mark.parametrize("told", ["", "error: there is no tool 'calculate', there is calculator", "1/3"])
def test_what_is_no_whole_number_is_followed_by_a_guess_of_as_many_digits_as_the_answer_has(told: str) -> None:
    guessed = read_carelessly(told, 3, 1.0, Random(1))
    assert 100 <= int(guessed) <= 999
    assert guessed != read_carelessly(told, 3, 1.0, Random(2))


def test_one_digit_becomes_another_from_1_to_9_and_all_places_have_their_turn() -> None:
    random = Random(3)
    places = set()
    for _ in range(200):
        changed = with_another_digit("12 * 30", random)
        differing = [place for place in range(7) if changed[place] != "12 * 30"[place]]
        assert len(differing) == 1
        assert changed[differing[0]] in "123456789"
        places.update(differing)
    assert places == {0, 1, 5, 6}
