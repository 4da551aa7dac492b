"""What a policy may write, into every reader of answers that runs in a process of ours: no exception, no hang.
Verifiers in their sandboxes are tried by tests/attacks."""

from __future__ import annotations

import re
from collections.abc import Callable

from brorl_graders.base import answer
from brorl_graders.base.foreign import inert
from brorl_graders.base.payload import is_blank
from brorl_graders.environments import tool_calls
from brorl_graders.verifiers import arithmetic, safe_answer
from brorl_graders.verifiers.code.code import extract_program
from brorl_graders.verifiers.math import library, notation, reading, statement, units, value
from brorl_graders.verifiers.math.answer import key_of
from brorl_graders.verifiers.math.equality import USUAL, are_equal
from brorl_graders.verifiers.registry import answer_reader
from brorl_lab.page.details import shorten
from hypothesis import given
from hypothesis import strategies as st

from nemo_brorl.prompts.columns import final_answer
from tests.fuzz.hostile import responses
from tests.fuzz.profile import fuzz, no_hang

READERS = (
    ("exact_match", {"answer": "3"}),
    ("exact_match", {"answer": "3", "answer_format": "last"}),
    ("exact_match", {"answer": "3", "answer_format": "boxed"}),
    ("math", {"answer": "3"}),
    ("math", {"answer": "\\frac{1}{2}", "answer_format": "last"}),
    ("multiple_choice", {"answer": "B", "choices": ["one", "two", "three"]}),
    ("multiple_choice", {"answer": "B"}),
    ("reasoning_gym", {"dataset": "gcd", "config": {}, "question": "q", "answer": "3", "metadata": {}}),
    ("composite", {"parts": [{"verifier": "format"}, {"verifier": "math"}], "answer": "3"}),
)
FORMS = (
    answer.extract_answer, answer.without_thinking, answer.last_answer, answer.boxed_answers, final_answer, is_blank,
    shorten, inert, notation.in_one_notation, notation.is_enclosed, value.read_number, reading.read,
    library.number_by_library, statement.stated_answer, statement.is_bare, statement.is_prose, units.read_unit,
    value.read_value, key_of, safe_answer.is_literal, safe_answer.is_arithmetic, extract_program,
)  # fmt: skip
CALLS = (
    '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    '{"name": "f", "parameters": {}}',
    '[TOOL_CALLS][{"name": "f"}]',
)
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


@fuzz(0.125)
@given(st.sampled_from(READERS), responses)
def test_every_reader_of_answers_takes_any_response(case: tuple[str, dict], response: str) -> None:
    name, payload = case
    read = answer_reader(name, payload)
    assert read is not None
    with no_hang(f"{name}'s reader"):
        found = read(response)
    assert found is None or isinstance(found, str)


@fuzz(0.125)
@given(st.sampled_from(FORMS), responses)
def test_every_form_takes_any_text(form: Callable[[str], object], text: str) -> None:
    with no_hang(form.__name__):
        form(text)


@fuzz(0.05)
@given(responses, responses)
def test_readings_are_compared_whatever_they_are(one: str, other: str) -> None:
    first = reading.read(one)
    second = reading.read(other)
    if first is not None and second is not None:
        with no_hang("are_equal"):
            are_equal(first, second, USUAL)


@fuzz(0.05)
@given(responses)
def test_arithmetic_that_is_let_through_has_a_value_or_none(text: str) -> None:
    with no_hang("arithmetic"):
        if safe_answer.is_arithmetic(text):
            arithmetic.exact_value(text)
            arithmetic.numbers_in(text)


@fuzz(0.05)
@given(
    st.sampled_from(CALLS),
    st.lists(st.tuples(st.floats(0, 1), responses), max_size=2),
    st.sampled_from(sorted(tool_calls.READERS)),
)
def test_tool_calls_are_read_whatever_a_model_writes(call: str, inserted: list[tuple[float, str]], form: str) -> None:
    for place, text in inserted:
        cut = int(place * len(call))
        call = call[:cut] + text + call[cut:]
    with no_hang("tool calls"):
        try:
            tool_calls.parse_calls(call, form, [TOOL])
        except tool_calls.ToolCallError as error:
            assert str(error)


def test_a_text_for_a_terminal_has_no_escape_sequences() -> None:
    assert re.search("[\x00-\x08\x0b-\x1f]", inert("a\x1b[31mb\x00\x07")) is None
