"""Tests of programs as a payload gives them, and when what came back passes one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_brorl.tasks.sandbox import FINISHED, Job, NotPlainError, Run, decode
from nemo_brorl.tasks.verifiers.code.assertions import Script, holds, take_apart
from nemo_brorl.tasks.verifiers.payload import Payload


@dataclass(frozen=True)
class Rules:
    """How results are compared."""

    is_exact: bool = False  # printed text letter by letter; else line by line, without regard to blanks
    is_any_order: bool = False  # lines, or the elements of a returned list, may come in any order
    tolerance: float = 1e-6  # of numbers with a point, absolute and relative; 0: none


@dataclass(frozen=True)
class PrintTest:
    """What a program must print for an input."""

    stdin: str
    expected: str

    def job(self, source: str) -> Job:
        return Job(source, stdin=self.stdin)

    def passes(self, run: Run, rules: Rules) -> bool:
        return run.ending == FINISHED and same_text(run.printed, self.expected, rules)


@dataclass(frozen=True)
class CallTest:
    """What a function must return for arguments."""

    name: str
    arguments: list[Any]
    expected: list[Any]  # any one of them

    def passes(self, reports: Sequence[list[Any]], rules: Rules) -> bool:
        """Judge the reports of this test's part of a run."""
        values = [value for what, value, _ in reports if what == "value"]
        try:
            return len(values) == 1 and any(same_value(decode(values[0]), one, rules) for one in self.expected)
        except (NotPlainError, RecursionError):
            return False


@dataclass(frozen=True)
class ScriptTest:
    """Assertions that must hold."""

    script: Script

    def passes(self, reports: Sequence[list[Any]], rules: Rules) -> bool:
        """Judge the reports of this test's part of a run: it came to its end, made every check it had to, and each
        held."""
        made = [(number, value) for what, value, number in reports if what == "check"]
        required = {number for number, check in self.script.checks.items() if check.is_required}
        if reports[-1:] == [] or reports[-1][0] != "done" or not made or not required <= {number for number, _ in made}:
            return False
        return all(self._holds(number, value) for number, value in made)

    def _holds(self, number: int, value: Any) -> bool:
        check = self.script.checks.get(number)
        try:
            return check is not None and isinstance(value, list) and holds(check, decode(value))
        except NotPlainError:
            return False


Test = PrintTest | CallTest | ScriptTest


def read_tests(payload: Payload) -> list[Test]:
    """All tests of a payload; docs/sandbox.md says what may be in it. Raises ValueError, saying what is wrong."""
    given = payload.get("tests", payload)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"'tests' is text that is not JSON ({error})") from error
    if isinstance(given, Sequence):
        given = {"asserts": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"'tests' is a {type(given).__name__}; write an object or a list of assertions")
    found = [*_input_tests(given), *_script_tests(given)]
    if not found:
        raise ValueError("there are no tests; write inputs and outputs, asserts, or script")
    return found


def same_text(got: str, expected: str, rules: Rules) -> bool:
    """Whether a program printed what it should."""
    if rules.is_exact:
        return got == expected
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (got, expected))
    if rules.is_any_order:
        ours, theirs = sorted(ours), sorted(theirs)
    return len(ours) == len(theirs) and all(
        _same_words(*pair, rules.tolerance) for pair in zip(ours, theirs, strict=True)
    )


def same_value(got: Any, expected: Any, rules: Rules) -> bool:
    """Whether a function returned what it should, which is JSON: tuples count as lists, and keys are texts."""
    got, expected = _as_json(got), _as_json(expected)
    if rules.is_any_order and isinstance(got, list) and isinstance(expected, list):
        got, expected = sorted(got, key=repr), sorted(expected, key=repr)
    return _is_same(got, expected, rules.tolerance)


def _same_words(got: list[str], expected: list[str], tolerance: float) -> bool:
    return len(got) == len(expected) and all(
        ours == theirs or _same_numbers(ours, theirs, tolerance) for ours, theirs in zip(got, expected, strict=True)
    )


def _same_numbers(got: str, expected: str, tolerance: float) -> bool:
    if not tolerance or not any(mark in expected for mark in ".eE"):
        return False
    try:
        return math.isclose(float(got), float(expected), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False


def _is_same(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(_is_same(*pair, tolerance) for pair in zip(got, expected, strict=True))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_is_same(got[key], expected[key], tolerance) for key in got)
    numbers = isinstance(got, int | float) and isinstance(expected, int | float)
    if numbers and tolerance and (isinstance(got, float) or isinstance(expected, float)):
        try:
            return bool(got == expected) or math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
        except OverflowError:  # an integer beyond every float
            return False
    return bool(got == expected)


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _as_json(item) for key, item in value.items()}
    return value


def _input_tests(given: Mapping[str, Any]) -> Iterator[Test]:
    inputs, outputs, name = given.get("inputs", []), given.get("outputs", []), given.get("fn_name")
    if (
        not isinstance(inputs, Sequence)
        or not isinstance(outputs, Sequence)
        or isinstance(inputs, str)
        or len(inputs) != len(outputs)
    ):
        raise ValueError("'inputs' and 'outputs' must be two lists of the same length")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"'fn_name' is {name!r}; write the name of a function, or leave it out")
    for one, output in zip(inputs, outputs, strict=True):
        if name is None:
            yield PrintTest(_text(one, "inputs"), _text(output, "outputs"))
        else:
            yield CallTest(name, _arguments(one), _accepted(output))


def _text(value: Any, key: str) -> str:
    """Text as it is; a list is lines, as in some of TACO's rows."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    raise ValueError(f"{key!r} holds {str(value)[:80]!r}; without fn_name write the text that is read or printed")


def _arguments(value: Any) -> list[Any]:
    """A list is the arguments; text has one of them on each line, as JSON (LiveCodeBench)."""
    if isinstance(value, str):
        try:
            return [json.loads(line) for line in value.splitlines() if line.strip()]
        except ValueError as error:
            raise ValueError(
                f"'inputs' holds {value[:80]!r}; with fn_name write a list of arguments, or one as JSON on each line"
            ) from error
    return list(value) if isinstance(value, list | tuple) else [value]


def _accepted(value: Any) -> list[Any]:
    """What may be returned: the value, what it holds if it is a list of one (APPS wraps so), or what it says if it is
    JSON."""
    accepted = [value]
    if isinstance(value, list | tuple) and len(value) == 1:
        accepted.append(value[0])
    if isinstance(value, str):
        try:
            accepted.append(json.loads(value))
        except ValueError:
            return accepted
    return accepted


def _script_tests(given: Mapping[str, Any]) -> Iterator[Test]:
    asserts, script, entry_point = given.get("asserts", []), given.get("script"), given.get("entry_point")
    if isinstance(asserts, str) or not all(isinstance(item, str) for item in asserts):
        raise ValueError("'asserts' must be a list of texts, each with at least one assertion")
    if script is not None and not isinstance(script, str):
        raise ValueError(f"'script' is a {type(script).__name__}; write Python source")
    whole = [f"{script}\n\ncheck({entry_point})\n" if entry_point else script] if script else []
    number = 0
    for source in [*asserts, *whole]:
        try:
            taken = take_apart(source, number)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"a test does not compile: {str(error)[:200]}: {source[:80]!r}") from error
        if not taken.checks:
            raise ValueError(f"a test asserts nothing: {source[:80]!r}")
        number += len(taken.checks)
        yield ScriptTest(taken)
