"""Rules of style that no linter has: sizes of files and functions, nested comprehensions, paths of one machine.

An exception is allowed where its line says why: `# long: reason` behind `def` or on one of a file's first lines.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import families_page, house_figures
from scripts.prose_check import BOUNDS, figures, read_prose
from tests.support.source_tree import ROOT, functions, name, nodes, package_files, python_files

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def has_reason(path: Path, line: int, word: str) -> bool:
    """Whether a line of a file ends in `# word: reason`."""
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    return re.search(rf"# {word}: \S+", text) is not None


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


def test_no_comprehension_is_inside_another() -> None:
    wrong = []
    for path in package_files():
        for node in nodes(path):
            if not isinstance(node, COMPREHENSIONS):
                continue
            inner = sum(isinstance(other, COMPREHENSIONS) for other in ast.walk(node)) - 1
            if inner or len(node.generators) > 1:
                wrong.append(f"{name(path)}:{node.lineno}")
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


def test_the_page_of_models_is_written_from_the_table_of_families() -> None:
    assert families_page.PAGE.read_text(encoding="utf-8") == families_page.page(), "run `make docs`"


def test_prose_stays_within_its_bounds() -> None:
    over = {name: value for name, value in figures(read_prose()).items() if value > BOUNDS[name]}
    assert over == {}, "`python scripts/prose_check.py --findings` lists them"


def test_size_stays_within_its_bounds() -> None:
    assert house_figures.above(house_figures.growth(ROOT)) == []
