"""The verifier `code`: right programs pass, wrong ones fail, and payloads that cannot be used say why."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.settings import CodeLimits
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.code.code import extract_program
from brorl_graders.verifiers.code.tests import ComparisonRules, same_text, same_value

from graders.tests.support.hostile_host import kill_with_descendants

pytestmark = pytest.mark.slow

MARK = 307  # MiB
SUM = "print(sum(map(int, input().split())))"
PRINTS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLS = {"inputs": [[1, 2], [3, 4]], "outputs": [3, [7]], "fn_name": "add"}
ADD = "def add(a, b): return a + b"
ASSERTS = {"asserts": ["assert add(1, 2) == 3", "assert add(0.1, 0.2) == 0.3", "assert add('a', 'b') == 'ab'"]}
# Reports a value that it does not make: integers of one hash, of which a set takes seconds.
FORGE = """
import json, os
COLLIDING = [{'int': hex(number * (2**61 - 1))} for number in range(30000)]
def forge(value):
    os.write(3, (json.dumps(['value', value, 0]) + chr(10)).encode())
    os._exit(0)
"""
HUMAN_EVAL = {
    "script": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate([], [1]) == [1]\n",
    "entry_point": "add",
}


def block(program: str) -> str:
    return f"I think so.\n```python\n{program}\n```\nDone."


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    """Enough time for a slow machine; one sandbox for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code.VARIABLE, "")
        code.configure(CodeLimits(test_timeout_s=30), 60)
        yield
        code.close()


@pytest.mark.parametrize("isolation", code.ISOLATIONS)
@pytest.mark.parametrize(
    ("payload", "program", "score"),
    [
        (PRINTS, SUM, 1.0),
        (PRINTS, "print(3)", 0.5),
        (PRINTS, "print(3)\n1 / 0", 0.0),
        (PRINTS, "print(", 0.0),
        ({"inputs": [["1", "2"]], "outputs": [["1", "2"]]}, "print(input())\nprint(input())", 1.0),
        (CALLS, ADD, 1.0),
        (CALLS, f"class Solution:\n    {ADD.replace('(a', '(self, a')}", 1.0),
        (CALLS, "def add(a, b): return 3", 0.5),
        (CALLS, "def add(a, b): return str(a + b)", 0.0),
        (CALLS, "def sub(a, b): return a + b", 0.0),
        (CALLS, "def add(a, b):\n    if a == 1: raise ValueError\n    return a + b", 0.5),
        (CALLS, "import os\ndef add(a, b): return a + b if a > 1 else os._exit(0)", 0.5),
        ({**CALLS, "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}, ADD, 1.0),
        (ASSERTS, ADD, 2 / 3),
        (ASSERTS, "", 0.0),
        (ASSERTS, "def add(a, b): return 3", 1 / 3),
        (HUMAN_EVAL, ADD, 1.0),
        (HUMAN_EVAL, "def add(a, b): return 3", 0.0),
        ({**CALLS, **ASSERTS}, ADD, 4 / 5),
    ],
)
def test_the_score_is_the_share_of_tests_that_pass(
    payload: dict[str, Any], program: str, score: float, isolation: str
) -> None:
    assert code.score({"tests": payload, "isolation": isolation}, block(program)) == pytest.approx(score)


def test_all_or_nothing_stops_at_the_first_failure() -> None:
    tests = {"inputs": ["1", "2", "3"], "outputs": ["1", "x", "3"]}
    assert code.score({"tests": tests, "scoring": "all"}, block("print(input())")) == 0.0
    assert code.score({"tests": tests, "scoring": "all", "max_tests": 1}, block("print(input())")) == 1.0


def test_tests_may_be_text_and_a_setup_comes_first() -> None:
    payload = {"tests": json.dumps(["assert area(1) == 3"]), "setup": "import math"}
    assert code.score(payload, block("def area(r): return math.floor(math.pi * r * r)")) == 1.0


@pytest.mark.parametrize(
    "returned",
    [
        "{10**5000: 1}",
        "[10**5000, 10**5001]",
        "10**5000",
        "forge({'set': COLLIDING})",
        "forge({'dict': [[number, 1] for number in COLLIDING]})",
        "range(10**9)",
        "object()",
    ],
)
@pytest.mark.parametrize("compare", code.COMPARISONS)
def test_what_cannot_be_compared_is_wrong_and_no_failure(returned: str, compare: str) -> None:
    tests = {"inputs": [[1]], "outputs": [[1.5]], "fn_name": "f"}
    assert code.score({"tests": tests, "compare": compare}, block(f"{FORGE}\ndef f(x): return {returned}")) == 0.0


def test_setup_is_the_judges_as_well() -> None:
    payload = {
        "tests": {"script": "def check(candidate):\n    assert twice(candidate(2)) == 6", "entry_point": "f"},
        "setup": "def twice(x): return 2 * x\ndef f(x): pass",
    }
    assert code.score(payload, block("def f(x): return twice(x) - 1")) == 1.0
    assert code.score(payload, block("def twice(x): return 6\ndef f(x): return 0")) == 0.0


def test_a_program_that_dies_takes_no_test_of_others_along() -> None:
    tests = ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"]
    program = "import os\ndef f(x): return x if x != 2 else os._exit(0)"
    for isolation in code.ISOLATIONS:
        assert code.score({"tests": tests, "isolation": isolation}, block(program)) == pytest.approx(2 / 3)


def test_one_judge_serves_many_programs_and_another_test_another_one() -> None:
    right = block("def f(x): return x")
    wrong = block("import os\nos.write(5, b'x' * 10)\ndef f(x): return -x")
    for number in range(40):
        payload = {"tests": [f"assert f({number // 20 + 1}) == {number // 20 + 1}"]}
        assert code.score(payload, wrong if number % 3 else right) == (0.0 if number % 3 else 1.0)


def test_sandboxes_that_are_lost_cost_the_test_and_are_replaced() -> None:
    payload = {"tests": ["assert f(1) == 1", "assert f(2) == 2"]}
    right = block("def f(x): return x")
    assert code.score(payload, right) == 1.0
    runner = code._runners[os.getpid()]
    for sandbox in (runner.sandbox, runner.judge._sandbox):
        assert sandbox is not None
        kill_with_descendants(sandbox.process_id)
        assert code.score(payload, right) < 1.0
        assert code.score(payload, right) == 1.0


def test_a_module_that_a_script_cannot_import_costs_its_own_tests_alone() -> None:
    tests = ["import no_such_module\nassert f(1) == 1", "assert f(2) == 2", "from __main__ import f\nassert f(2) == 2"]
    assert code.score({"tests": tests}, block("def f(x): return x")) == pytest.approx(2 / 3)


def test_the_pool_scores_programs_in_its_children() -> None:
    pool = ProcessPool(Deadlines(60))
    try:
        assert pool.score("code", {"tests": PRINTS}, [block(SUM), "no program", block("print(3)")]) == [1, 0, 0.5]
    finally:
        pool.close()


def test_a_child_killed_at_its_deadline_takes_sandbox_and_program_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(code.VARIABLE, "")
    code.configure(CodeLimits(test_timeout_s=300, memory_mib=MARK), 600)
    pool = ProcessPool(Deadlines(3))
    try:
        assert pool.score("code", {"tests": PRINTS}, [block("import os\nos.fork()\nwhile True: pass")]) == [None]
        assert pool.num_failures == 1
    finally:
        pool.close()
    for _ in range(200):
        if not marked_processes():
            return
        time.sleep(0.05)
    pytest.fail(f"alive: {marked_processes()}")


def marked_processes() -> list[str]:
    """Processes of sandboxes with a memory limit that no other has."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [str(file)] if f'"memory_mib": {MARK}'.encode() in file.read_bytes() else []
    return found


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```\ntext\n```python\nb\n```", "b\n"),
        ("```py\na\n```\nIt prints\n```text\n3\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\n```\nb\n```", "a\n"),
        ("```python\na\n```\n```python\ncut off", "a\n"),
        ("<think>\n```python\na\n```\n</think>\n```python\nb\n```", "b\n"),
        ("  ```Python\n  a\n  ```", "a\n"),
        ("```cpp\nint a;\n```", None),
        ("print(1)", None),
        ("", None),
    ],
)
def test_the_last_block_of_python_is_the_program(response: str, program: str | None) -> None:
    assert extract_program(response) == program


def test_plain_text_is_a_program_where_that_is_allowed() -> None:
    assert extract_program("print(1)", may_be_bare=True) == "print(1)"
    assert extract_program("```python\na\n", may_be_bare=True) == "a\n\n"


@pytest.mark.parametrize(
    ("got", "expected", "rules", "is_same"),
    [
        ("3 \n\n", "3", ComparisonRules(), True),
        ("1  2\n3", "1 2\n3\n", ComparisonRules(), True),
        ("1\n2", "1 2", ComparisonRules(), False),
        ("0.33333334", "0.33333333", ComparisonRules(), True),
        ("0.34", "0.33", ComparisonRules(), False),
        ("3", "3.0", ComparisonRules(), True),
        ("4", "3", ComparisonRules(tolerance=10), False),
        ("yes", "YES", ComparisonRules(), False),
        ("3\n", "3", ComparisonRules(is_exact=True), False),
        ("b\na", "a\nb", ComparisonRules(is_any_order=True), True),
        ("b\nb", "a\nb", ComparisonRules(is_any_order=True), False),
        ("nan", "1.0", ComparisonRules(), False),
        ("", "", ComparisonRules(), True),
    ],
)
def test_printed_text_is_compared_by_lines(got: str, expected: str, rules: ComparisonRules, is_same: bool) -> None:
    assert same_text(got, expected, rules) is is_same


@pytest.mark.parametrize(
    ("got", "expected", "rules", "is_same"),
    [
        ((1, 2), [1, 2], ComparisonRules(), True),
        ([2, 1], [1, 2], ComparisonRules(), False),
        ([2, 1], [1, 2], ComparisonRules(is_any_order=True), True),
        ({1: [0.1 + 0.2]}, {"1": [0.3]}, ComparisonRules(), True),
        (0.1 + 0.2, 0.3, ComparisonRules(tolerance=0), False),
        (10**400, 1.5, ComparisonRules(), False),
        (1, "1", ComparisonRules(), False),
        ([1], [1, 2], ComparisonRules(), False),
        (float("nan"), 1.0, ComparisonRules(), False),
        ({1}, [1], ComparisonRules(), False),
        (None, None, ComparisonRules(), True),
    ],
)
def test_returned_values_are_compared_as_json(got: Any, expected: Any, rules: ComparisonRules, is_same: bool) -> None:
    assert same_value(got, expected, rules) is is_same


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "there are no tests"),
        ({"tests": "{"}, "not JSON"),
        ({"tests": 3}, "'tests' is a int"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "same length"),
        ({"tests": {"inputs": [1], "outputs": ["1"]}}, "without fn_name write the text"),
        ({"tests": {"inputs": ["a"], "outputs": ["1"], "fn_name": "f"}}, "list of arguments"),
        ({"tests": {"inputs": [[1]], "outputs": [1], "fn_name": "f("}}, "name of a function"),
        ({"tests": ["assert ("]}, "does not compile"),
        ({"tests": ["f(1) == 2"]}, "asserts nothing"),
        ({"tests": ["assert True"]}, "uses nothing of the program"),
        (
            {"tests": ["assert set(sum(1, 2)) == {3}"]},
            "which of set, sum it tests is not clear: name it in entry_point",
        ),
        ({"tests": ["assert eval(f(2)) == 3"]}, "calls eval, which could run what the program returns"),
        ({"tests": ["import pickle\nassert f(2) == 3"]}, "imports pickle"),
        ({"tests": {"script": "def check(candidate):\n    assert candidate(1) == 2"}}, "in entry_point"),
        ({"tests": {"script": "assert f(1) == 2", "entry_point": "f("}}, "write the name of a function"),
        ({"tests": PRINTS, "scoring": "most"}, "choose fraction, all"),
    ],
)
def test_a_payload_that_cannot_be_used_says_why(payload: dict[str, Any], message: str) -> None:
    assert message in "; ".join(code.check(payload))


def test_good_payloads_have_nothing_wrong() -> None:
    assert [
        message for payload in (PRINTS, CALLS, ASSERTS, HUMAN_EVAL) for message in code.check({"tests": payload})
    ] == []
