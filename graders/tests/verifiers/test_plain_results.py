"""What a program returns is a bounded tree of plain data: what calls, grows or is something else earns nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from brorl_graders.base.settings import CodeLimits
from brorl_graders.sandbox.values import MAX_CHARACTERS, MAX_ITEMS, NotPlainError, as_json, decode
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.code.scripts import read_script
from brorl_graders.verifiers.code.tests import ComparisonRules, same_value

BY_NUMPY = "import numpy as np\nassert {}"
FORGED_ARRAY = """
class A:
    __module__ = "numpy"
    def tolist(self): return {items}
class Text(str):
    str = property(lambda self: {kind!r})
A.dtype = Text({kind!r})
def f(n): return A()
"""
FORGED_REPORT = "import os\nos.write(3, b'[\"value\", {}, 0]\\n')\nos._exit(0)"
NAMED_TUPLE = """
from collections import namedtuple
def f(*a): return namedtuple("R", [{name!r}])(lambda *a, **k: {result!r})
"""
CONTEXT = """
class C:
    def __enter__(self): return {}
    def __exit__(self, *error): return True
def f(n): return C()
"""
EMPTIES = "def f(a):\n    a.clear()\n    return []"


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code.VARIABLE, "")
        code.configure(CodeLimits(test_timeout_s=30, preload=["numpy"]), 100)
        yield
        code.close()


def score(payload: dict[str, Any], program: str) -> float:
    assert list(code.check(payload)) == []
    return code.score(payload, f"```python\n{program}\n```")


def holds(script: str, program: str) -> bool:
    return score({"asserts": [script]}, program) == 1.0


@pytest.mark.parametrize("kind", ["(1,)f8", "(2,3)f4", "(3,)O", "O", "i4,f8", "V8", "<U2000000"])
@pytest.mark.parametrize("items", ["[]", "[[]]"])
def test_an_array_has_one_of_the_types_of_numbers_texts_and_dates(kind: str, items: str) -> None:
    style = BY_NUMPY.format("(f(3) == np.array([1, 2, 3])).all()")
    assert not holds(style, FORGED_ARRAY.format(kind=kind, items=items))
    assert holds(style, "import numpy as np\ndef f(n): return np.arange(1, n + 1)")
    with pytest.raises(NotPlainError):
        decode({"array": [kind, []]})


@pytest.mark.parametrize("style", ["(f(3) == np.array([5])).all()", "np.array_equiv(f(3), 5)", "np.all(f(3) == 5)"])
@pytest.mark.parametrize("shape", ["0", "(0, 1)", "(1, 0)"])
def test_an_array_without_items_equals_none_that_has_some(style: str, shape: str) -> None:
    assert not holds(BY_NUMPY.format(style), f"import numpy as np\ndef f(n): return np.zeros({shape})")
    assert holds(BY_NUMPY.format(style), "import numpy as np\ndef f(n): return np.array([5])")


def test_arrays_of_all_plain_types_are_compared_as_such() -> None:
    values = (
        "np.array([True]), np.array([[1, 2]], 'u2'), np.array(['ab']), np.array(['2020-01-01'], 'M8[D]'), np.zeros(0)"
    )
    style = BY_NUMPY.format(f"all((a == b).all() and a.dtype == b.dtype for a, b in zip(f(), [{values}]))")
    assert holds(style, f"import numpy as np\ndef f(): return [{values}]")


@pytest.mark.parametrize(
    ("name", "test", "result"),
    [
        ("startswith", "f('x').startswith('ab')", True),
        ("equals", "f(1).equals([1])", True),
        ("tolist", "f(3).tolist() == [1]", [1]),
        ("match", "f('x').match('ab')", True),
    ],
)
def test_fields_of_a_named_tuple_are_plain_data(name: str, test: str, result: object) -> None:
    assert not holds(f"assert {test}", NAMED_TUPLE.format(name=name, result=result))


def test_a_forged_named_tuple_with_a_function_is_no_value() -> None:
    forged = {"namedtuple": ["R", ["match"], [{"mine": [0, "function"]}]]}
    with pytest.raises(NotPlainError):
        decode(forged, lambda kind, content: print)
    assert decode([{"mine": 0}], lambda kind, content: print) == [print]


def test_a_named_tuple_of_plain_data_keeps_its_fields() -> None:
    program = "from collections import namedtuple\ndef f(n): return namedtuple('P', 'count index')(n, 2 * n)"
    assert holds("assert f(2) == (2, 4) and f(2).count == 2 and f(2).index == 4", program)


def test_a_context_manager_of_the_program_does_not_suppress_a_failed_assertion() -> None:
    script = "with f(1) as r:\n    assert r == 61"
    assert (holds(script, CONTEXT.format(0)), holds(script, CONTEXT.format(61))) == (False, True)


SORT = "f = sorted"


@pytest.mark.parametrize(
    ("script", "right"),
    [
        ("x = [3, 1, 2]\nassert f(x) == sorted(x)", SORT),
        ("x = [[3, 1], [2]]\nassert f(x) == [sorted(r) for r in x]", "def f(a): return [sorted(r) for r in a]"),
        ("x = {'a': 1}\nassert f(x) == list(x)", SORT),
        ("x = {1, 2}\nassert sorted(x) == f(a=x)", "def f(a): return sorted(a)"),
        ("cases = [[3, 1]]\nassert f(cases[0]) == sorted(cases[0])", SORT),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        x = [2, 1]\n"
            "        self.assertEqual(f(x), sorted(x))",
            SORT,
        ),
        ("x = [2, 1]\nif f(x) != sorted(x):\n    assert False\nassert f", SORT),
    ],
)
def test_a_program_cannot_change_what_is_computed_from_its_argument(script: str, right: str) -> None:
    assert (holds(script, EMPTIES), holds(script, right)) == (False, True)


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("x = [2, 1]\nassert f(x) is x", "def f(a): return a"),
        ("x = [2, 1]\nassert f(x) is None and x == [1, 2]", "def f(a): a.sort()"),
    ],
)
def test_an_argument_that_is_asserted_itself_is_not_copied(script: str, program: str) -> None:
    assert holds(script, program)


def test_copies_are_made_in_comparisons_alone() -> None:
    assert "__copy_of__" not in read_script("y = f(x) + g(x)\nassert y == 3").source
    assert read_script("assert f(x) == g(x)").source.count("__copy_of__(x)") == 2


@pytest.mark.parametrize("kind", ["set", "dict", "str", "int"])
def test_a_built_in_class_stands_for_no_value(kind: str) -> None:
    assert not holds("assert f([1]).union({1, 2}) == {1, 2}", f"def f(a): return {kind}")
    assert not holds("assert f([1]).fromkeys([1]) == {1: None}", f"def f(a): return {kind}")


def test_a_built_in_class_may_be_the_function() -> None:
    assert holds("assert unique([1, 1]) == {1}", "unique = set")


@pytest.mark.parametrize("kind", ["array", "deque", "Counter", "OrderedDict", "namedtuple", "range", "int", "dict"])
@pytest.mark.parametrize("content", [[], [[]], {}, 0, "", None, [0, 10**30, 1]])
def test_whatever_the_reading_of_a_report_raises_the_test_fails(kind: str, content: object) -> None:
    for read in (as_json, decode):
        try:
            read({kind: content})
        except NotPlainError:
            continue


@pytest.mark.parametrize("report", ['{"array": []}', '{"deque": []}', '{"Counter": []}', '{"range": "ab"}'])
def test_a_report_with_too_few_items_is_a_wrong_answer(report: str) -> None:
    payload = {"inputs": [[1]], "outputs": [987], "fn_name": "f"}
    assert score(payload, FORGED_REPORT.format(report)) == 0.0


@pytest.mark.parametrize(
    "data",
    [
        [{"range": [0, 1000, 1]}] * 101,
        [{"range": [0, 10**9, 1]}],
        [0] * (MAX_ITEMS + 1),
        ["x" * 1024] * 1025,
        {"int": "f" * (MAX_CHARACTERS + 1)},
        {"Counter": [{"dict": [[number, 1] for number in range(MAX_ITEMS)]}]},
    ],
)
def test_items_and_characters_are_counted_before_anything_is_built(data: Any) -> None:
    with pytest.raises(NotPlainError, match="more than 100000 items or 1048576 characters"):
        as_json(data)


def test_a_judge_counts_too_and_a_program_reads_its_tests_without_a_limit() -> None:
    many = [0] * (MAX_ITEMS + 1)
    with pytest.raises(NotPlainError, match="more than"):
        decode(many, is_of_program=True)
    assert decode(many) == many


@pytest.mark.parametrize(
    ("got", "expected", "is_same"),
    [
        (123456912579.9, 123456789123, False),
        (3.0, 3, True),
        (True, 1, False),
        (1, True, False),
        (0.0, 3e-7, False),
        (0.0, 1.2246467991473532e-16, True),
        (1e-9, 0.0, True),
        (0.1 + 0.2, 0.3, True),
        (3, 3.0000001, True),
    ],
)
def test_a_tolerance_is_for_expected_numbers_with_a_point(got: object, expected: object, is_same: bool) -> None:
    assert same_value(got, expected, ComparisonRules()) is is_same
