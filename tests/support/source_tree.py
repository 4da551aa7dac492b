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
    """The files of `nemo_brorl`."""
    return sorted(PACKAGE.rglob("*.py"))


def launcher_files() -> list[Path]:
    return sorted(LAUNCHER.rglob("*.py"))


def python_files() -> list[Path]:
    folders = [ROOT / name for name in FOLDERS]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, FUNCTIONS))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a file, lazy and `TYPE_CHECKING` ones too. `from a import b` is `a.b`."""
    for node in ast.walk(tree(path)):
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


def module_of(dotted: str) -> str | None:
    """The module that an imported name is, or is a name of; None for other packages."""
    known = modules()
    if dotted in known:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in known else None


@cache
def import_graph() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, in whatever way."""
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        targets = {module_of(imported) for _, imported in imports(path)}
        graph[module] = {target for target in targets if target is not None and target != module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, in a circle of any length."""
    left = {module: set(targets) for module, targets in graph.items()}
    while True:
        ends = {module for module, targets in left.items() if not targets & left.keys()}
        imported = set().union(*left.values()) if left else set()
        starts = left.keys() - imported
        if not ends | starts:
            break
        left = {module: targets for module, targets in left.items() if module not in ends | starts}
    return [sorted(left)] if left else []
