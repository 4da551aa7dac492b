"""Grade the cases of other projects' test suites, and print how often our graders and math-verify agree with them.

    python graders/bench/peer_suites.py CLONES [--show]

`CLONES` is a folder with clones or exports of the projects (huggingface/Math-Verify, huggingface/lighteval,
THUDM/slime, rllm-org/rllm), by any names: test files are found by their own names. Nothing of a project is run, and no
case is kept. The cases are read from the literals of the test files: parameters of tests, and assertions that a
function's result equals a constant. `--show` prints the cases in which our grader disagrees.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from brorl_graders.verifiers import multiple_choice
from brorl_graders.verifiers.math import answer as maths

LETTERS = "ABCDEFGHIJ"
SUITES = {  # name of a test file: name of the suite, and whether it is about letters
    "test_all.py": ("Math-Verify test_all", False),
    "test_boxed.py": ("Math-Verify boxed, numina, open-thoughts, strict, yujianll", False),
    "test_numina_cases.py": ("Math-Verify boxed, numina, open-thoughts, strict, yujianll", False),
    "test_open_thoughts.py": ("Math-Verify boxed, numina, open-thoughts, strict, yujianll", False),
    "test_strict.py": ("Math-Verify boxed, numina, open-thoughts, strict, yujianll", False),
    "test_yujianll.py": ("Math-Verify boxed, numina, open-thoughts, strict, yujianll", False),
    "test_extractive_match.py": ("lighteval extractive match", False),
    "test_string_extraction.py": ("letters: Math-Verify", True),
    "gpqa_instruct_metric.json": ("letters: lighteval GPQA", True),
    "test_rm_gpqa.py": ("letters: slime GPQA", True),
    "test_mcq.py": ("letters: rLLM", True),
}
REFERENCES = ("gold", "label", "ground_truth")
RESPONSES = ("pred", "response", "answer")


class Case(NamedTuple):
    """A case of a suite: the reference, the response, and the verdict that the suite expects."""

    payload: dict[str, Any]
    response: str
    is_right: bool


def read_cases(path: Path) -> Iterator[tuple[str, Case]]:
    """Yield the cases of a test file, each with the name of its suite."""
    name, _ = SUITES[path.name]
    if path.suffix == ".json":
        for item in json.loads(path.read_text())["test_cases"]:
            right = item["doc"]["choices"][item["doc"]["gold_index"]]
            (expected,) = item["expected_output"].values()
            yield name, Case({"answer": right}, item["model_response"]["text"][0], expected == 1.0)
        return
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test"):
            suite = "letters: lighteval" if "abc" in function.name and "letters" not in name else name
            for case in [*_parametrized(function), *_asserted(function)]:
                yield suite, case


def _parametrized(function: ast.FunctionDef) -> Iterator[Case]:
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith("parametrize"):
            continue
        names = [name.strip() for name in _value(decorator.args[0]).split(",")]
        rows = decorator.args[1]
        assert isinstance(rows, (ast.List, ast.Tuple))
        for row in rows.elts:
            cells = row.elts if isinstance(row, (ast.Tuple, ast.List)) else [row]
            case = _case({name: _value(cell) for name, cell in zip(names, cells, strict=True)})
            if case is not None:
                yield case


def _asserted(function: ast.FunctionDef) -> Iterator[Case]:
    """Yield the case of each assertion that a call, or a variable that holds its result, equals a constant."""
    known: dict[str, ast.expr] = {}
    for statement in function.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known[statement.targets[0].id] = statement.value
        if not isinstance(statement, ast.Assert) or not isinstance(statement.test, ast.Compare):
            continue
        call, expected = statement.test.left, _value(statement.test.comparators[0])
        task, episode = known.get("task"), known.get("ep")
        if isinstance(call, ast.Attribute) and call.attr == "is_correct" and task and isinstance(episode, ast.Call):
            values = {**_value(task), **_value(episode.keywords[0].value), "expected": expected}
        else:
            if isinstance(call, ast.Name):
                call = known.get(call.id, call)
            if not isinstance(call, ast.Call) or not call.args:
                continue
            first = call.args[0]
            first = known.get(first.id, first) if isinstance(first, ast.Name) else first
            values = {keyword.arg: _value(keyword.value) for keyword in call.keywords}
            is_pair = ast.unparse(call.func) == "compare_strings"
            values |= {"gold": _value(first), "pred": _value(call.args[1])} if is_pair else {"pred": _value(first)}
            values["expected"] = expected
        case = _case(values)
        if case is not None:
            yield case


def _case(values: dict[str | None, Any]) -> Case | None:
    """Make a case of the named values of a test. None: one is missing or no literal."""
    reference = next((values[name] for name in REFERENCES if name in values), None)
    response = next((values[name] for name in RESPONSES if name in values), None)
    expected = values.get("expected", values.get("result"))
    if reference is None and isinstance(expected, list) and isinstance(response, str):
        expected = expected[-1] if expected else ""
    if reference is None and isinstance(expected, str):
        reference, expected = expected or LETTERS[0], bool(expected)
    if reference is None or not isinstance(response, str) or not isinstance(expected, (bool, int, float)):
        return None
    payload: dict[str, Any] = {"answer": reference}
    metadata = values.get("metadata") or {}
    if "choices" in metadata:
        choices = metadata["choices"]
        payload["choices"] = list(choices.values() if isinstance(choices, dict) else choices)
    payload["answer"] = metadata.get("correct_letter", payload["answer"])
    if "precision" in values and values["precision"] < 6:
        payload["relative_tolerance"] = 10.0 ** -values["precision"]
    return Case(payload, response, bool(expected))


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def ours(case: Case, is_about_letters: bool) -> bool:
    """Return the verdict of our grader of mathematics or multiple choice."""
    verifier: Any = multiple_choice if is_about_letters else maths
    payload = dict(case.payload)
    if is_about_letters and isinstance(payload["answer"], str) and "choices" not in payload:
        payload["answer"] = multiple_choice.chosen_letter(payload["answer"]) or payload["answer"].strip("() ")[:1]
    try:
        return bool(verifier.score(payload, case.response))
    except (KeyError, TypeError, ValueError):
        return False


def theirs(case: Case) -> bool:
    """Return the verdict of math-verify as it comes."""
    from math_verify import parse, verify

    return bool(verify(parse(case.payload["answer"]), parse(case.response)))


def main() -> None:
    """Print the number of cases of each suite, and how many verdicts of ours and math-verify agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, nargs="?", help="without it this help is printed")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if options.clones is None:
        parser.print_help()
        return
    logging.disable(logging.WARNING)
    table: dict[str, list[int]] = {}
    for path in sorted(options.clones.rglob("*")):
        if path.name not in SUITES or not path.is_file():
            continue
        for suite, case in read_cases(path):
            is_about_letters = suite.startswith("letters")
            row = table.setdefault(suite, [0, 0, 0])
            verdict = ours(case, is_about_letters)
            row[0] += 1
            row[1] += verdict == case.is_right
            row[2] += 0 if is_about_letters else theirs(case) == case.is_right
            if options.show and verdict != case.is_right:
                print(f"    {suite}: {case.payload} {case.response!r} expects {case.is_right}")
    print("suite: cases, ours agree, math-verify agrees")
    for suite, (number, agree, library) in table.items():
        print(f"{suite}: {number}, {agree}, {'-' if suite.startswith('letters') else library}")


if __name__ == "__main__":
    main()
