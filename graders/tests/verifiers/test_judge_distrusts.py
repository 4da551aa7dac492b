"""A judge believes nothing of a program but what it asked for: names, ends of iterations, empty arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from brorl_graders.base.settings import CodeLimits
from brorl_graders.verifiers.code import code

RIGHT = "def double(number): return 2 * number"
ADDS_NAMES = """
import sys
from builtins import zip as pairs
learned = []
def spy(*lists):
    learned.extend(lists[-1])
    return list(pairs(*lists))
def double(number): return learned.pop(0) if learned else None
for module in list(sys.modules.values()):
    for kind in list(vars(module).values()):
        kept = getattr(kind, '_names', None)
        if isinstance(kind, type) and callable(kept):
            kind._names = lambda self, *names, kept=kept: [*kept(self, *names), ['zip', spy]]
"""
OVER_TWO_LISTS = """
def check(candidate):
    inputs = [4, 6]
    results = [8, 12]
    for number, expected in zip(inputs, results):
        assert candidate(number) == expected
"""
OVER_A_MAP = (
    "def check(candidate):\n    assert all(map(lambda case: candidate(case[0]) == case[1], [(4, 8), (6, 12)]))\n"
)
BY_NUMPY = "import numpy as np\nnp.testing.{}(double(4), 8)"


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code.VARIABLE, "")
        code.configure(CodeLimits(test_timeout_s=30), 100)
        yield
        code.close()


def score(payload: dict[str, Any], program: str) -> float:
    assert list(code.check(payload)) == []
    return code.score(payload, f"```python\n{program}\n```")


def test_a_program_cannot_put_its_functions_in_the_place_of_pythons() -> None:
    payload = {"script": OVER_TWO_LISTS, "entry_point": "double"}
    assert (score(payload, ADDS_NAMES), score(payload, RIGHT)) == (0.0, 1.0)


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration", "type('Mine', (StopIteration,), {})"])
def test_a_program_cannot_end_an_iteration_of_the_test(error: str) -> None:
    payload = {"script": OVER_A_MAP, "entry_point": "double"}
    cheat = f"def double(number): raise {error}"
    assert (score(payload, cheat), score(payload, RIGHT)) == (0.0, 1.0)


def test_a_programs_own_iterator_ends_where_it_ends() -> None:
    script = (
        "assert list(count(2)) == [0, 1]\nitems = count(1)\nassert next(items) == 0\nassert next(items, None) is None"
    )
    program = "def count(end):\n    for number in range(end):\n        yield number"
    assert score({"script": script}, program) == 1.0


@pytest.mark.parametrize("function", ["assert_array_equal", "assert_allclose", "assert_equal", "assert_almost_equal"])
@pytest.mark.parametrize("nothing", ["[]", "__import__('numpy').array([])"])
def test_an_empty_array_is_no_number(function: str, nothing: str) -> None:
    payload = {"script": BY_NUMPY.format(function)}
    cheat = f"def double(number): return {nothing}"
    assert (score(payload, cheat), score(payload, RIGHT)) == (0.0, 1.0)


def test_a_program_cannot_change_what_is_expected_of_it_through_arguments_behind_a_star() -> None:
    script = "numbers = ([2, 1],)\nassert ordered(*numbers) == sorted(*numbers)"
    empties = "def ordered(numbers):\n    numbers.clear()\n    return []"
    assert (score({"script": script}, empties), score({"script": script}, "ordered = sorted")) == (0.0, 1.0)


def test_a_call_that_is_a_statement_changes_its_arguments_behind_a_star() -> None:
    script = "arguments = ([2, 1],)\norder(*arguments)\nassert arguments[0] == [1, 2]"
    assert score({"script": script}, "def order(numbers): numbers.sort()") == 1.0
