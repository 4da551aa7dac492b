"""The source files of the repository as the architecture and style tests see them: modules, imports, functions."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nemo_brorl"
LAUNCHER = ROOT / "launcher" / "brorl_launcher"
LAB = ROOT / "lab" / "brorl_lab"
GRADERS = ROOT / "graders" / "brorl_graders"
PACKAGES = (PACKAGE, LAUNCHER, LAB, GRADERS)
# PYTHONPATH of a process that is to find this checkout's packages, installed or not.
CODE_PATH = os.pathsep.join(str(package.parent) for package in PACKAGES)

FOLDERS = ("nemo_brorl", "launcher", "lab", "graders", "tests", "bench", "scripts")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def load_script(name: str) -> ModuleType:
    """A file of scripts/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package_files() -> list[Path]:
    """The files of our packages."""
    return sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def python_files() -> list[Path]:
    folders = [ROOT / name for name in FOLDERS]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in nodes(path) if isinstance(node, FUNCTIONS))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a file, lazy and `TYPE_CHECKING` ones too. `from a import b` is `a.b`."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: relative import, write the whole name"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@cache
def modules() -> dict[str, Path]:
    """Dotted name of every module of our packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found
