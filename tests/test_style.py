"""Rules of style that a machine can check: sizes, density, annotations, docstrings, words, paths.

An exception is allowed where its line says why: `# long: reason` behind `def` or on one of a file's first lines,
`# deep: reason` behind the innermost statement.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.source_tree import (
    FUNCTIONS,
    ROOT,
    functions,
    launcher_files,
    name,
    package_files,
    python_files,
    tree,
)

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50
MAX_NESTING = 3
MAX_TOKENS_A_LINE = 8.0  # mean over lines of code
MAX_COMPREHENSIONS = 30.0  # per 1,000 lines of code
MAX_NESTED_COMPREHENSIONS = 0  # one inside another, or with two `for`s

MAY_PRINT = ("console.py", "__main__.py")

CONTROL = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
NO_CODE = (
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
)


def has_reason(path: Path, line: int, word: str) -> bool:
    """Whether a line of a file ends in `# word: reason`."""
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    return re.search(rf"# {word}: \S+", text) is not None


def depth(nodes: list[ast.stmt], level: int = 0) -> tuple[int, int]:
    """(deepest level of control statements, its line) in a body; `elif` is no level deeper; nested functions are
    counted alone."""
    deepest = (level, 0)
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        is_control = isinstance(node, CONTROL)
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, [])
            is_elif = (
                field == "orelse" and len(inner) == 1 and isinstance(node, ast.If) and isinstance(inner[0], ast.If)
            )
            deepest = max(deepest, depth(inner, level if is_elif else level + is_control))
        for handler in getattr(node, "handlers", []) or getattr(node, "cases", []):
            deepest = max(deepest, depth(handler.body, level + 1))
        if is_control:
            deepest = max(deepest, (level + 1, node.lineno))
    return deepest


@dataclass(frozen=True)
class Density:
    """How much stands on a line of code. Blank lines, comments and docstrings are none."""

    lines: int
    tokens: int
    comprehensions: int
    nested: int  # comprehensions with another one inside, or with two `for`s


def docstring_lines(path: Path) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            found.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return found


def density(paths: Sequence[Path]) -> Density:
    lines = tokens = comprehensions = nested = 0
    for path in paths:
        text = docstring_lines(path)
        code_lines = []
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type not in NO_CODE and token.start[0] not in text:
                code_lines.append(token.start[0])
        lines += len(set(code_lines))
        tokens += len(code_lines)
        for node in ast.walk(tree(path)):
            if isinstance(node, COMPREHENSIONS):
                comprehensions += 1
                inner = sum(isinstance(other, COMPREHENSIONS) for other in ast.walk(node)) - 1
                nested += inner > 0 or len(node.generators) > 1
    return Density(lines, tokens, comprehensions, nested)


def test_lines_read_at_first_sight() -> None:
    found = density([*package_files(), *launcher_files()])
    assert found.tokens / found.lines <= MAX_TOKENS_A_LINE
    assert 1000 * found.comprehensions / found.lines <= MAX_COMPREHENSIONS
    assert found.nested <= MAX_NESTED_COMPREHENSIONS


def test_the_density_of_three_lines_is_counted_right(tmp_path: Path) -> None:
    path = tmp_path / "dense.py"
    path.write_text('"""Text."""\n\na = 1  # a comment\nb = [c for c in (d for d in a)]\nf(a, b)\n')
    assert density([path]) == Density(lines=3, tokens=3 + 15 + 6, comprehensions=2, nested=1)


def test_files_are_short() -> None:
    wrong = []
    for path in python_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_FILE_LINES and not any("# long: " in line for line in lines[:5]):
            wrong.append(f"{name(path)} has {len(lines)} lines, more than {MAX_FILE_LINES}")
    assert not wrong, "\n".join(wrong)


def test_functions_are_short() -> None:
    wrong = [
        f"{name(path)}:{node.lineno} {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        for path in python_files()
        for node in functions(path)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
        and not has_reason(path, node.lineno, "long")
    ]
    assert not wrong, "\n".join(wrong)


def test_nesting_is_shallow() -> None:
    wrong = []
    for path in python_files():
        for node in functions(path):
            levels, line = depth(node.body)
            if levels > MAX_NESTING and not has_reason(path, line, "deep"):
                wrong.append(f"{name(path)}:{line} {node.name} is {levels} levels deep, more than {MAX_NESTING}")
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is_for() -> None:
    wrong = [name(path) for path in python_files() if not ast.get_docstring(tree(path))]
    assert not wrong, "\n".join(wrong)


def test_every_parameter_and_return_is_annotated() -> None:
    wrong = []
    for path in python_files():
        for node in functions(path):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            missing = [arg.arg for arg in given if arg and arg.annotation is None and arg.arg not in ("self", "cls")]
            if missing or node.returns is None:
                wrong.append(f"{name(path)}:{node.lineno} {node.name}: {', '.join(missing) or 'return'}")
    assert not wrong, "\n".join(wrong)


def test_nothing_prints_but_the_command_line() -> None:
    wrong = [
        f"{name(path)}:{node.lineno}"
        for path in package_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and path.name not in MAY_PRINT
    ]
    assert not wrong, "\n".join(wrong)


def repository_texts() -> Iterator[tuple[Path, str]]:
    """Every text file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for line in listed.stdout.splitlines():
        path = ROOT / line
        if path.is_file() and path != Path(__file__).resolve():
            yield path, path.read_text(encoding="utf-8", errors="ignore")


def test_no_path_or_registry_of_one_machine_is_written_down() -> None:
    forbidden = re.compile(
        rf"{re.escape(str(ROOT))}\b|/(?:root|home|work)/\w|/opt/wheels|https?://[\w.-]*(?:pypi|pythonhosted|download\.pytorch)"
    )
    wrong = [
        f"{name(path)}:{number}: {line.strip()[:120]}"
        for path, text in repository_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if forbidden.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_for_later() -> None:
    forbidden = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|\bplaceholder\b", re.IGNORECASE)
    wrong = [
        f"{name(path)}:{number}: {line.strip()[:120]}"
        for path in python_files()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if forbidden.search(line)
    ]
    assert not wrong, "\n".join(wrong)
