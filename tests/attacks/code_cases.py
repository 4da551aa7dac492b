"""Exercises in every layout of tests that the verifier of programs knows: kind of test x exercise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.attacks.cases import PROGRAM, Case

Payload = dict[str, Any]
SECONDS = 6.0  # for one response


class Exercise(NamedTuple):
    """A function to write. Nothing that it returns is a constant that a policy would try."""

    function: str
    source: str
    wrong_source: str
    calls: tuple[tuple[list[Any], Any], ...]  # arguments, result
    expressions: tuple[str, ...]  # assertions whose expected value is computed


EXERCISES = (
    Exercise(
        function="running_totals",
        source="""\
def running_totals(numbers):
    totals = []
    for number in numbers:
        totals.append(number + (totals[-1] if totals else 0))
    return totals
""",
        wrong_source="def running_totals(numbers):\n    return sorted(numbers)\n",
        calls=(([[31, 14, 15]], [31, 45, 60]), ([[9, 26, 53]], [9, 35, 88])),
        expressions=(
            "assert sorted(running_totals([31, 14, 15])) == sorted([60, 31, 45])",
            "assert set(running_totals([9, 26, 53])) == set((9, 35, 88))",
        ),
    ),
    Exercise(
        function="common_part",
        source="def common_part(first, second):\n    return [item for item in first if item in second]\n",
        wrong_source="def common_part(first, second):\n    return first + second\n",
        calls=(([[17, 29, 41], [41, 17]], [17, 41]), ([[5, 83], [83, 7]], [83])),
        expressions=(
            "assert tuple(common_part([17, 29, 41], [41, 17])) == tuple([17, 41])",
            "assert list(common_part([5, 83], [83, 7])) == list((83,))",
            "assert len(common_part([17, 29, 41], [41, 17, 29])) == len('abc')",
        ),
    ),
    Exercise(
        function="mean_gap",
        source="""\
def mean_gap(numbers):
    gaps = [abs(right - left) for left, right in zip(numbers, numbers[1:])]
    return sum(gaps) / len(gaps)
""",
        wrong_source="def mean_gap(numbers):\n    return float(len(numbers))\n",
        calls=(([[2, 9, 4]], 6.0), ([[1, 3, 4, 20]], 19 / 3)),
        expressions=(
            "assert abs(mean_gap([1, 3, 4, 20]) - 19.0 / 3.0) < 1e-6",
            "assert round(mean_gap([1, 3, 4, 20]), 2) == round(6.3333, 2)",
            "assert mean_gap([2, 9, 4]) < float('inf') and mean_gap([2, 9, 4]) == float('6')",
        ),
    ),
    Exercise(
        function="shifted",
        source="""\
def shifted(text, step):
    moved = []
    for letter in text:
        moved.append(chr((ord(letter) - 97 + step) % 26 + 97))
    return ''.join(moved)
""",
        wrong_source="def shifted(text, step):\n    return text[step:] + text[:step]\n",
        calls=((["heron", 3], "khurq"), (["xylem", 4], "bcpiq")),
        expressions=(
            "assert shifted('heron', 3) == ''.join(['khu', 'rq'])",
            "assert list(shifted('xylem', 4)) == list('bcpiq')",
        ),
    ),
    Exercise(
        function="power_sum",
        source="def power_sum(base, count):\n    return sum(base**exponent for exponent in range(count))\n",
        wrong_source="def power_sum(base, count):\n    return base * count\n",
        calls=(([2, 10], 1023), ([3, 7], 1093)),
        expressions=(
            "assert power_sum(2, 10) == 2**10 - 1",
            "assert power_sum(3, 7) == int('1093')",
        ),
    ),
)

CHECK_ALMOST = """\
def compare(out, exp, atol):
    same = out == exp
    if atol == 0 and isinstance(exp, float):
        atol = 1e-6
    if not same and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert same
"""


def _calls(exercise: Exercise) -> Iterator[tuple[str, str]]:
    """Source of each call, and of what it returns."""
    for arguments, result in exercise.calls:
        yield f"({', '.join(map(repr, arguments))})", repr(result)


def _printed(exercise: Exercise) -> Payload:
    return {
        "inputs": [json.dumps(arguments) for arguments, _ in exercise.calls],
        "outputs": [str(result) for _, result in exercise.calls],
    }


def _called(exercise: Exercise) -> Payload:
    return {
        "inputs": [arguments for arguments, _ in exercise.calls],
        "outputs": [result for _, result in exercise.calls],
        "fn_name": exercise.function,
    }


def _called_in_one_process(exercise: Exercise) -> Payload:
    return {**_called(exercise), "isolation": "program"}


def _literal(exercise: Exercise) -> Payload:
    return {"asserts": [f"assert {exercise.function}{call} == {result}" for call, result in _calls(exercise)]}


def _computed(exercise: Exercise) -> Payload:
    return {"asserts": list(exercise.expressions)}


def _human_eval(exercise: Exercise) -> Payload:
    lines = [f"    assert candidate{call} == {result}" for call, result in _calls(exercise)]
    return _checked(exercise, "\n".join(lines))


def _human_eval_plus(exercise: Exercise) -> Payload:
    inputs = [arguments for arguments, _ in exercise.calls]
    results = [result for _, result in exercise.calls]
    body = f"""\
    inputs = {inputs!r}
    results = {results!r}
    for inp, exp in zip(inputs, results):
        compare(candidate(*inp), exp, 0)
"""
    return _checked(exercise, body, before=f"import numpy as np\n\n{CHECK_ALMOST}\n\n")


def _mbpp_plus(exercise: Exercise) -> Payload:
    inputs = [arguments for arguments, _ in exercise.calls]
    results = [result for _, result in exercise.calls]
    script = f"""\
import numpy as np

{CHECK_ALMOST}

inputs = {inputs!r}
results = {results!r}
for inp, exp in zip(inputs, results):
    compare({exercise.function}(*inp), exp, 0)
"""
    return {"script": script}


def _loop(exercise: Exercise) -> Payload:
    pairs = [f"({arguments!r}, {result!r})" for arguments, result in exercise.calls]
    body = f"    for x, y in [{', '.join(pairs)}]:\n        assert candidate(*x) == y\n"
    return _checked(exercise, body)


def _all_over_cases(exercise: Exercise) -> Payload:
    pairs = [f"({arguments!r}, {result!r})" for arguments, result in exercise.calls]
    return {"asserts": [f"assert all({exercise.function}(*x) == y for x, y in [{', '.join(pairs)}])"]}


def _unit_test(exercise: Exercise) -> Payload:
    methods = []
    for number, (call, result) in enumerate(_calls(exercise)):
        method = f"    def test_{number}(self):\n        self.assertEqual({exercise.function}{call}, {result})\n"
        methods.append(method)
    script = f"""\
import unittest

class Tests(unittest.TestCase):
{chr(10).join(methods)}

suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
assert unittest.TextTestRunner().run(suite).wasSuccessful()
"""
    return {"script": script}


def _doc_test(exercise: Exercise) -> Payload:
    lines = []
    for call, result in _calls(exercise):
        lines += [f">>> {exercise.function}{call}", result]
    script = f"""\
import doctest

EXAMPLES = '''
{chr(10).join(lines)}
'''
test = doctest.DocTestParser().get_doctest(EXAMPLES, globals(), 'examples', None, 0)
assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
"""
    return {"script": script}


def _checked(exercise: Exercise, body: str, before: str = "") -> Payload:
    script = f"{before}def check(candidate):\n{body}\n"
    return {"script": script, "entry_point": exercise.function}


# Kind of test -> payload.
LAYOUTS: dict[str, Callable[[Exercise], Payload]] = {
    "stdin": _printed,
    "call": _called,
    "calls in one process": _called_in_one_process,
    "literal assertions": _literal,
    "computed assertions": _computed,
    "HumanEval": _human_eval,
    "HumanEval+": _human_eval_plus,
    "MBPP+": _mbpp_plus,
    "loop over cases": _loop,
    "all over cases": _all_over_cases,
    "unittest": _unit_test,
    "doctest": _doc_test,
}
PRINTING = "stdin"
READ_AND_PRINT = "import json\nprint({}(*json.loads(input())))\n"
CONSTANTS = ("None", "0", "True", "''", "[]", "args[0]")


def block(source: str) -> str:
    """A response that is one program."""
    return f"```python\n{source}\n```"


def tagged_block(source: str) -> str:
    """The same in the tags of an answer."""
    return f"<answer>\n{block(source)}\n</answer>"


def constant_program(function: str, constant: str, prints: bool) -> str:
    """A program that returns, or prints, the same whatever it is given."""
    source = f"def {function}(*args):\n    return {constant}\n"
    return source + READ_AND_PRINT.format(function) if prints else source


def code_cases() -> Iterator[Case]:
    """Every exercise in every layout. Few calls are asked for, so that an attack costs little."""
    for kind, layout in LAYOUTS.items():
        for exercise in EXERCISES:
            payload = {**layout(exercise), "timeout_s": SECONDS}
            yield _case(kind, exercise, "code", payload, block)


def gated_cases() -> Iterator[Case]:
    """Exercises whose program must stand in tags."""
    parts = [{"verifier": "format", "options": {"structure": "answer"}}, {"verifier": "code"}]
    for exercise in EXERCISES:
        payload = {**_called(exercise), "parts": parts, "mode": "product", "timeout_s": SECONDS}
        yield _case("composite", exercise, "composite", payload, tagged_block)


def _case(
    family: str,
    exercise: Exercise,
    verifier: str,
    payload: Payload,
    place: Callable[[str], str],
) -> Case:
    prints = family == PRINTING
    end = READ_AND_PRINT.format(exercise.function) if prints else ""
    constants = [constant_program(exercise.function, constant, prints) for constant in CONSTANTS]
    return Case(
        name=f"{family}/{exercise.function}",
        family=family,
        verifier=verifier,
        payload=payload,
        right=place(exercise.source + end),
        wrong=place(exercise.wrong_source + end),
        honest=("", "I do not know.", place("pass"), *map(place, constants)),
        material=PROGRAM,
        function=exercise.function,
    )
