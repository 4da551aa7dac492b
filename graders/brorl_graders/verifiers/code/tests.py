"""Read the tests of programs from a payload, and decide when a result passes one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brorl_graders.base.foreign import DIGITS, LARGE, read_json
from brorl_graders.base.payload import Key, Payload
from brorl_graders.sandbox import FINISHED, SandboxResult, ScriptedTest, as_json
from brorl_graders.verifiers.code.scripts import Script, modules_of, read_script

ROUNDING = 1e-12  # most rounding error of a sum of numbers around 1
TEST_KEYS = (
    Key(
        "tests",
        "tests as an object, as JSON text of an object, as a list of objects with `input` and `output`, or as a list "
        "of assertions. The object has the keys `inputs` to `entry_point`, which may also be keys of the payload",
    ),
    Key("inputs", "list of inputs: texts that the program reads. A list of texts stands for lines"),
    Key("outputs", "list of outputs that the program must print before it exits with code 0"),
    Key(
        "fn_name",
        "function, or method of `Solution`. An input is then a list of arguments, or text with one JSON value a line. "
        "An output is the value that the function must return, also in a list of one or as JSON text",
    ),
    Key("asserts", "list of texts with assertions, each of which is a test"),
    Key("script", "Python source of one test"),
    Key("entry_point", "function of the program with which the script's `check` is called"),
)


@dataclass(frozen=True)
class ComparisonRules:
    """How the results of a program are compared with the expected ones."""

    is_exact: bool = False  # True: printed text must be identical; False: line by line, any white space
    is_any_order: bool = False  # True: lines, or the items of a returned list, may come in any order
    # Relative tolerance of numbers with a decimal point, and absolute one of printed numbers and of 0; 0: none
    tolerance: float = 1e-6


@dataclass(frozen=True)
class PrintTest:
    """A test that gives a program its input, and compares what it prints."""

    stdin: str
    expected: str

    def passes(self, result: SandboxResult, rules: ComparisonRules) -> bool:
        return result.ending == FINISHED and same_text(result.printed, self.expected, rules)


@dataclass(frozen=True)
class CallTest:
    """A test that calls a function with arguments, and compares what it returns."""

    name: str
    arguments: list[Any]
    expected: list[Any]  # accepted values

    def passes(self, report: list[Any], rules: ComparisonRules) -> bool:
        """Return whether the sandbox's report of a function call under test has one of the expected values."""
        what, value, _ = report
        if what != "value":
            return False
        try:
            returned = as_json(value)
            return any(same_value(returned, expected, rules) for expected in self.expected)
        except Exception:  # noqa: BLE001 whatever a report of the program raises, its test fails
            return False


@dataclass(frozen=True)
class ScriptTest:
    """A test script of which every assertion must hold."""

    number: int
    scripts: tuple[Script, ...]  # scripts of all tests of the task

    def passes(self, report: list[Any], rules: ComparisonRules) -> bool:
        """Return whether a report on a test script says that the script ran to its end, so that all assertions held."""
        what, _, number = report
        return what == "done" and number == self.number

    def all_scripts(self, setup: str) -> ScriptedTest:
        """Return all test scripts of a programming task, with setup and imports, for the process that runs them."""
        modules = modules_of(setup).union(*[script.modules for script in self.scripts])
        parts = [script.for_judge() for script in self.scripts]
        return ScriptedTest(parts, setup, modules)


Test = PrintTest | CallTest | ScriptTest


def read_tests(payload: Payload) -> list[Test]:
    """Return all tests in the payload of a programming task (docs/built_in_verifiers.md describes the keys).

    Raises ValueError that says what is wrong with the tests.
    """
    given = payload.get("tests", payload)
    if isinstance(given, str):
        try:
            given = read_json(given, digits=DIGITS, most_bytes=LARGE)
        except ValueError as error:
            raise ValueError(f"'tests' is text that is not JSON ({error})") from error
    if isinstance(given, Sequence) and given and all(isinstance(test, Mapping) for test in given):
        inputs = [test.get("input") for test in given]
        outputs = [test.get("output") for test in given]
        given = {"inputs": inputs, "outputs": outputs, "fn_name": payload.get("fn_name")}
    elif isinstance(given, Sequence):
        given = {"asserts": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"'tests' is a {type(given).__name__}; write an object or a list of assertions")
    found = [*_input_tests(given), *_script_tests(given)]
    if not found:
        raise ValueError("there are no tests; write inputs and outputs, asserts, or script")
    return found


def same_text(got: str, expected: str, rules: ComparisonRules) -> bool:
    """Return whether a program printed the expected text, as `rules` compare texts."""
    if rules.is_exact:
        return got == expected
    got_lines = _lines_of_words(got)
    expected_lines = _lines_of_words(expected)
    if rules.is_any_order:
        got_lines.sort()
        expected_lines.sort()
    if len(got_lines) != len(expected_lines):
        return False
    for got_words, expected_words in zip(got_lines, expected_lines, strict=True):
        if not _same_words(got_words, expected_words, rules.tolerance):
            return False
    return True


def _lines_of_words(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def same_value(got: Any, expected: Any, rules: ComparisonRules) -> bool:
    """Return whether a function returned the expected value, as `rules` compare values.

    The expected value is JSON, so tuples count as lists and keys as texts.
    """
    got = _as_json(got)
    expected = _as_json(expected)
    if rules.is_any_order and isinstance(got, list) and isinstance(expected, list):
        got.sort(key=repr)
        expected.sort(key=repr)
    return _is_same(got, expected, rules.tolerance)


def _same_words(got: list[str], expected: list[str], tolerance: float) -> bool:
    if len(got) != len(expected):
        return False
    for word, expected_word in zip(got, expected, strict=True):
        if word != expected_word and not _same_numbers(word, expected_word, tolerance):
            return False
    return True


def _same_numbers(got: str, expected: str, tolerance: float) -> bool:
    has_point = any(mark in expected for mark in ".eE")
    if not tolerance or not has_point:
        return False
    try:
        number = float(got)
        expected_number = float(expected)
        return math.isclose(number, expected_number, rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False


def _is_same(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(got, list) and isinstance(expected, list):
        keys: Iterable[Any] = range(len(got))
        may_be_same = len(got) == len(expected)
    elif isinstance(got, dict) and isinstance(expected, dict):
        keys = got
        may_be_same = got.keys() == expected.keys()
    else:
        return _is_same_item(got, expected, tolerance)
    if not may_be_same:
        return False
    return all(_is_same(got[key], expected[key], tolerance) for key in keys)


def _is_same_item(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(got, bool) != isinstance(expected, bool):
        return False
    if got == expected:
        return True
    if not (isinstance(expected, float) and isinstance(got, int | float) and tolerance):
        return False
    # Another number than 0 has the relative tolerance alone, and room for the rounding errors of numbers around 1.
    absolute = ROUNDING if expected else tolerance
    try:
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=absolute)
    except OverflowError:  # an integer larger than any float
        return False


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        json_object: dict[str, Any] = {}
        for key, item in value.items():
            json_object[str(key)] = _as_json(item)
        return json_object
    return value


def _input_tests(given: Mapping[str, Any]) -> Iterator[Test]:
    inputs = given.get("inputs", [])
    outputs = given.get("outputs", [])
    name = given.get("fn_name")
    are_lists = isinstance(inputs, Sequence) and isinstance(outputs, Sequence)
    if isinstance(inputs, str) or not are_lists or len(inputs) != len(outputs):
        raise ValueError("'inputs' and 'outputs' must be two lists of the same length")
    if name is not None and not is_name(name):
        raise ValueError(f"'fn_name' is {name!r}; write the name of a function, or leave it out")
    for given_input, output in zip(inputs, outputs, strict=True):
        if name is None:
            yield PrintTest(_text(given_input, "inputs"), _text(output, "outputs"))
        else:
            yield CallTest(name, _arguments(given_input), _accepted(output))


def _text(value: Any, key: str) -> str:
    """Return a test's input or expected output as text.

    A list of texts, which some rows of TACO have, becomes lines.
    """
    if isinstance(value, str):
        return value
    if _is_list_of_texts(value):
        return "\n".join(value)
    raise ValueError(f"{key!r} holds {str(value)[:80]!r}; without fn_name write the text that is read or printed")


def _is_list_of_texts(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(isinstance(item, str) for item in value)


def _arguments(value: Any) -> list[Any]:
    """Return the arguments with which a test of a programming task calls a function.

    A given list is the arguments. A given text has one argument as JSON on each line (LiveCodeBench). Raises ValueError
    for a text that is not JSON of this form.
    """
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str):
        return [value]
    lines = filter(str.strip, value.splitlines())
    try:
        return [read_json(line, digits=DIGITS, most_bytes=LARGE) for line in lines]
    except ValueError as error:
        raise ValueError(
            f"'inputs' holds {value[:80]!r}; with fn_name write a list of arguments, or one as JSON on each line"
        ) from error


def _accepted(value: Any) -> list[Any]:
    """Return all values that count as right if a test expects this value of a function.

    Besides the value itself these are the only item of a list of one (APPS wraps values so), and the value that a text
    holds as JSON.
    """
    accepted = [value]
    if isinstance(value, list | tuple) and len(value) == 1:
        accepted.append(value[0])
    if isinstance(value, str):
        try:
            accepted.append(read_json(value, digits=DIGITS, most_bytes=LARGE))
        except ValueError:
            return accepted
    return accepted


def _script_tests(given: Mapping[str, Any]) -> Iterator[Test]:
    asserts = given.get("asserts", [])
    script = given.get("script")
    entry_point = given.get("entry_point")
    if not _is_list_of_texts(asserts):
        raise ValueError("'asserts' must be a list of texts, each with at least one assertion")
    if script is not None and not isinstance(script, str):
        raise ValueError(f"'script' is a {type(script).__name__}; write Python source")
    if entry_point is not None and not is_name(entry_point):
        raise ValueError(f"'entry_point' is {entry_point!r}; write the name of a function, or leave it out")
    sources = list(asserts)
    if script:
        sources.append(script)
    scripts: list[Script] = []
    for source in sources:
        try:
            scripts.append(read_script(source, entry_point or ""))
        except ValueError as error:
            raise ValueError(f"a test cannot be used: {str(error)[:200]}: {source[:80]!r}") from error
    for number in range(len(scripts)):
        yield ScriptTest(number, tuple(scripts))


def is_name(value: Any) -> bool:
    """Return whether a value can be the name of a Python function."""
    return isinstance(value, str) and value.isidentifier()
