"""Layouts of tests: an exercise as the payloads of data sets have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.attacks.exercises import Exercise

Payload = dict[str, Any]
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


def called(exercise: Exercise) -> Payload:
    """Calls of a function, each in a process of its own."""
    return {
        "inputs": [arguments for arguments, _ in exercise.calls],
        "outputs": [result for _, result in exercise.calls],
        "fn_name": exercise.function,
    }


def _called_in_one_process(exercise: Exercise) -> Payload:
    return {**called(exercise), "isolation": "program"}


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


def _map_over_cases(exercise: Exercise) -> Payload:
    pairs = [f"({arguments!r}, {result!r})" for arguments, result in exercise.calls]
    return _checked(exercise, f"    assert all(map(lambda case: candidate(*case[0]) == case[1], [{', '.join(pairs)}]))")


def _raised_where_unequal(exercise: Exercise) -> Payload:
    lines = []
    for call, result in _calls(exercise):
        lines.append(f"    if candidate{call} != {result}:\n        assert False, 'wrong'")
    return _checked(exercise, "\n".join(["    assert callable(candidate)", *lines]))


def _reference(exercise: Exercise) -> Payload:
    """Expected values are computed by the test, from the arguments that the program was given."""
    reference = exercise.source.replace(exercise.function, "reference")
    inputs = [arguments for arguments, _ in exercise.calls]
    body = f"    for inp in {inputs!r}:\n        assert candidate(*inp) == reference(*inp)\n"
    return _checked(exercise, body, before=f"{reference}\n\n")


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
    return {"script": "\n".join(lines)}


def _numpy(exercise: Exercise) -> Payload:
    """What `==` and `all` of NumPy would let pass of an empty array, this does not."""
    asserts = []
    for call, result in _calls(exercise):
        asserts.append(f"import numpy as np\nassert np.array_equal({exercise.function}{call}, {result})")
    return {"asserts": asserts}


def _numpy_testing(exercise: Exercise) -> Payload:
    lines = ["import numpy as np"]
    for call, result in _calls(exercise):
        check = "assert_allclose" if isinstance(exercise.calls[0][1], float) else "assert_array_equal"
        lines.append(f"np.testing.{check}({exercise.function}{call}, {result})")
    return {"script": "\n".join(lines)}


def _numpy_operators(exercise: Exercise) -> Payload:
    """NumPy's `==` with results of several items, since an empty list equals one item by broadcasting."""
    asserts = []
    for call, (_, result) in zip(_calls(exercise), exercise.calls, strict=True):
        is_long = isinstance(result, list) and len(result) > 1
        test = "({} == np.array({})).all()" if is_long else "{} == {}"
        asserts.append("import numpy as np\nassert " + test.format(exercise.function + call[0], call[1]))
    return {"asserts": asserts}


def _methods(exercise: Exercise) -> Payload:
    """Methods that plain data has are asked with what is expected."""
    asserts = []
    for call, (_, result) in zip(_calls(exercise), exercise.calls, strict=True):
        test = f"{exercise.function}{call[0]}"
        if isinstance(result, str):
            test += f".startswith({result!r})"
        elif isinstance(result, list):
            test += f".count({result[-1]!r}) == 1"
        else:
            test += f" == {result!r}"
        asserts.append(f"assert {test}")
    return {"asserts": asserts}


def _set_methods(exercise: Exercise) -> Payload:
    """The function returns a set."""
    asserts = []
    for call, (_, result) in zip(_calls(exercise), exercise.calls, strict=True):
        items = result if isinstance(result, list | str) else [result]
        asserts.append(f"assert {exercise.function}{call[0]}.intersection(set({items!r})) == set({items!r})")
    return {"asserts": asserts}


def _contexts(exercise: Exercise) -> Payload:
    """The function returns a context manager."""
    asserts = []
    for call, result in _calls(exercise):
        asserts.append(f"with {exercise.function}{call} as result:\n    assert result == {result}")
    return {"asserts": asserts}


def _arguments_twice(exercise: Exercise) -> Payload:
    """Expected values are computed from the arguments, after the program had them."""
    reference = exercise.source.replace(exercise.function, "reference")
    asserts = []
    for arguments, _ in exercise.calls:
        names = [f"x{number}" for number in range(len(arguments))]
        given = [f"{name} = {argument!r}" for name, argument in zip(names, arguments, strict=True)]
        called_with = ", ".join(names)
        test = f"assert {exercise.function}({called_with}) == reference({called_with})"
        asserts.append("\n".join([reference, *given, test]))
    return {"asserts": asserts}


def _checked(exercise: Exercise, body: str, before: str = "") -> Payload:
    script = f"{before}def check(candidate):\n{body}\n"
    return {"script": script, "entry_point": exercise.function}


# Kind of test -> payload.
LAYOUTS: dict[str, Callable[[Exercise], Payload]] = {
    "stdin": _printed,
    "call": called,
    "calls in one process": _called_in_one_process,
    "literal assertions": _literal,
    "computed assertions": _computed,
    "HumanEval": _human_eval,
    "HumanEval+": _human_eval_plus,
    "MBPP+": _mbpp_plus,
    "loop over cases": _loop,
    "all over cases": _all_over_cases,
    "map over cases": _map_over_cases,
    "raised where unequal": _raised_where_unequal,
    "reference": _reference,
    "unittest": _unit_test,
    "doctest": _doc_test,
    "numpy": _numpy,
    "numpy.testing": _numpy_testing,
    "numpy operators": _numpy_operators,
    "methods": _methods,
    "set methods": _set_methods,
    "contexts": _contexts,
    "arguments twice": _arguments_twice,
}
# Kind of test -> what is appended to the honest programs of an exercise.
ENDS: dict[str, str] = {
    "stdin": "import json\nprint({0}(*json.loads(input())))\n",
    "set methods": """\
def as_set(result):
    return set(result) if isinstance(result, (list, str)) else {{result}}
{0} = (lambda function: lambda *args: as_set(function(*args)))({0})
""",
    "contexts": """\
import contextlib
{0} = (lambda function: lambda *args: contextlib.nullcontext(function(*args)))({0})
""",
}
