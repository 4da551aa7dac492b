"""The judge of test scripts, in a process of its own that no program can see: a script runs here, with the names that
it does not define as objects that ask the program (`remote.py`). What is expected, and what is done with it, is never
where the program is.

A part of the job is a script: `source`, in which each assertion says before it that it is reached (`MARK`), `names`
that the program has, and those of them that are `tested` even where the job's `setup` defines them, too. A judge serves
one test and one program after another; what it has of a program is plain data.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nemo_brorl.tasks.sandbox.limits import COPY, MARK
from nemo_brorl.tasks.sandbox.remote import JudgeEnd

MAX_ERROR = 300  # characters
Report = Callable[[str, Any, int], None]  # what, value, index


def run(
    job: dict[str, Any],
    channels: Sequence[int],
    max_line: int,
    report: Report,
) -> None:
    """Follow orders, one program after another, until there are no more. The last of `channels` brings the orders,
    `[program, parts]`; two of the others, to read from and to write to, lead to each program. After each order `["end",
    null, -1]` is reported."""
    with open(channels[-1], encoding="ascii") as orders:
        for line in orders:
            program, parts = json.loads(line)
            end = JudgeEnd(channels[2 * program], channels[2 * program + 1], max_line)
            judge(job, parts, end, report)
            report("end", None, -1)


def judge(
    job: dict[str, Any],
    parts: Sequence[int],
    end: JudgeEnd,
    report: Report,
) -> None:
    """Run these scripts of a job, and report `["done", null, index]` where one holds of the program, else `["error",
    text, index]`. Ends without a report at the first that the program does not survive."""
    for index in parts:
        problem = _problem(job["parts"][index], job["setup"], end)
        if end.is_gone:
            return
        if problem is None:
            report("done", None, index)
        else:
            report("error", problem[:MAX_ERROR], index)


def _problem(
    script: dict[str, Any],
    setup: str,
    end: JudgeEnd,
) -> str | None:
    """Why a script does not hold; None where it does."""
    try:
        _run(script, setup, end)
    except SystemExit as error:
        is_of_script = "place" not in vars(error)  # and not of the program
        if is_of_script and error.code in (None, 0, False):
            return None
        return f"SystemExit: {error}"
    except BaseException as error:  # noqa: BLE001 whatever is raised here, the test does not hold
        return f"{type(error).__name__}: {error}"
    return None


def _run(
    script: dict[str, Any],
    setup: str,
    end: JudgeEnd,
) -> None:
    """Run a script as a module `__main__` of its own. Raises what it raises, and AssertionError where nothing was
    asserted."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["tests.py"]
    unittest.main = lambda *_, **__: None  # type: ignore[assignment]
    _refuse_empty_arrays(script["source"])
    reached: list[None] = []
    namespace = vars(module)
    namespace[MARK] = lambda: reached.append(None)
    namespace[COPY] = _copy_of
    exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
    names = [name for name in script["names"] if name in script["tested"] or name not in namespace]
    namespace.update(end.names(names))
    try:
        exec(compile(script["source"], "tests.py", "exec", dont_inherit=True), namespace)
    finally:
        _run_test_cases(namespace)
    if not reached:
        for test in _test_functions(namespace):
            test()
    if not reached:
        raise AssertionError("no assertion was reached")


def _copy_of(value: Any) -> Any:
    """A copy of a list or tuple of arguments, which a program may change; anything else as it is."""
    return copy.deepcopy(value) if isinstance(value, list | tuple) else value


def _run_test_cases(namespace: dict[str, Any]) -> None:
    """Run the classes of unittest, whether or not the script did."""
    suite = unittest.TestSuite()
    for value in list(namespace.values()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(value))
    result = unittest.TestResult()
    suite.run(result)
    for _, text in (*result.errors, *result.failures):
        raise AssertionError(text[-MAX_ERROR:])
    if not result.wasSuccessful():
        raise AssertionError("a test that should fail did not")


def _test_functions(namespace: dict[str, Any]) -> Iterator[Callable[[], object]]:
    """Functions of a script, and of its classes, that are tests by their names (pytest)."""
    for name, value in list(namespace.items()):
        if name.startswith("test") and inspect.isfunction(value) and not inspect.signature(value).parameters:
            yield value
        is_class = name.startswith("Test") and isinstance(value, type)
        if not is_class or issubclass(value, unittest.TestCase):
            continue
        for method in vars(value):
            if method.startswith("test"):
                yield getattr(value(), method)


def _refuse_empty_arrays(source: str) -> None:
    """NumPy finds that no numbers at all are close to one number, and equal to it: not here. `source` is the script's,
    for which its functions for tests are loaded if it uses them."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    for name in ("allclose", "isclose"):
        _let_check_sizes(numpy, name, numpy)
    if "testing" not in source:
        return
    testing = importlib.import_module("numpy.testing")
    for name in dir(testing):
        if name.startswith("assert_") and name.endswith(("equal", "close", "less")):
            _let_check_sizes(testing, name, numpy)


def _let_check_sizes(module: types.ModuleType, name: str, numpy: types.ModuleType) -> None:
    """Have a function of NumPy that compares two arrays fail where one of them is empty and the other not."""
    compare = getattr(module, name)

    def check(
        got: Any,
        expected: Any,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        is_empty = [numpy.asarray(value).size == 0 for value in (got, expected)]
        if is_empty[0] == is_empty[1]:
            return compare(got, expected, *arguments, **options)
        if module is numpy:
            return False
        raise AssertionError("one of them is empty, and the other not")

    setattr(module, name, check)
