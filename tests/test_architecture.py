"""The rules of docs/architecture.md that a machine can check: who imports whom, sizes, annotations, docstrings, words, paths.

An exception is allowed where its line says why: `# long: reason` behind `def` or on one of a file's first lines, `# deep: reason`
behind the innermost statement.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nemo_brorl"

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_NESTING = 3

# Lower shelves first. A unit (module or folder) imports from lower shelves and from inside itself, never sideways.
SHELVES: tuple[tuple[str, ...], ...] = (
    ("errors", "logs", "whole_file"),
    ("types", "clock", "console", "heartbeat", "process_memory"),
    ("object_store", "config"),
    ("ports", "kl", "tokenizer", "weight_wire", "cluster", "places", "run_folder", "theory", "carrier_files", "sandbox"),
    ("rollouts", "rewards", "dynamic_sampling", "advantages", "losses", "packing", "metrics", "reference_reset"),
    ("prompts", "policy", "generation", "weight_sync", "checkpoint", "sinks", "nemo_app", "cluster_model"),
    ("preflight", "sampling", "learning_batch", "parity", "report_tables", "report", "converted"),
    ("evaluation", "collection"),
    ("trainer", "warm_up"),
    ("wiring",),
    ("runs", "simulations"),
    ("commands",),
)
ENTRY_POINTS = ("train", "evaluate", "sft", "simulate", "plateau", "convert", "plan", "doctor", "__main__")

# Heavy libraries have one owner each.
OWNERS = {
    "megatron": "policy",
    "transformer_engine": "policy",
    "vllm": "generation",
    "nemo": "nemo_app",
    "lightning": "nemo_app",
    "matplotlib": "report",
}
TORCH_FREE = (
    "errors",
    "logs",
    "types",
    "object_store",
    "config",
    "ports",
    "commands",
    "rollouts",
    "dynamic_sampling",
    "packing",
    "trainer",
    "reference_reset",
)

LAUNCHER_MAY_IMPORT = ("nemo_brorl.config.", "nemo_brorl.errors.", "nemo_brorl.console.")  # what answers at once, without torch

MAY_PRINT = ("console.py", "__main__.py")

CONTROL = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def python_files() -> list[Path]:
    folders = [PACKAGE, ROOT / "tests", ROOT / "bench", ROOT / "scripts", ROOT / "launcher"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def unit(path: Path) -> str:
    """The module or folder right below the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import of a file, those inside functions too. `from a import b` counts as `a.b`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: relative import, write the whole name"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, FUNCTIONS))


def has_reason(path: Path, line: int, word: str) -> bool:
    """Whether a line of a file ends in `# word: reason`."""
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    return re.search(rf"# {word}: \S+", text) is not None


def depth(nodes: list[ast.stmt], level: int = 0) -> tuple[int, int]:
    """(deepest level of control statements, its line) in a body; `elif` is no level deeper; nested functions are counted alone."""
    deepest = (level, 0)
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        is_control = isinstance(node, CONTROL)
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, [])
            is_elif = field == "orelse" and len(inner) == 1 and isinstance(node, ast.If) and isinstance(inner[0], ast.If)
            deepest = max(deepest, depth(inner, level if is_elif else level + is_control))
        for handler in getattr(node, "handlers", []) or getattr(node, "cases", []):
            deepest = max(deepest, depth(handler.body, level + 1))
        if is_control:
            deepest = max(deepest, (level + 1, node.lineno))
    return deepest


def test_every_unit_stands_on_a_shelf() -> None:
    placed = {unit_name for shelf in SHELVES for unit_name in shelf} | {*ENTRY_POINTS, "__init__"}
    assert {unit(path) for path in package_files()} <= placed


def test_the_module_map_names_every_unit() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [unit_name for shelf in SHELVES for unit_name in shelf if not re.search(rf"`{unit_name}(/`|`|\.py`)", text)] == []


def test_imports_go_down_the_shelves() -> None:
    level = {unit_name: index for index, shelf in enumerate(SHELVES) for unit_name in shelf}
    level |= dict.fromkeys(ENTRY_POINTS, len(SHELVES))
    wrong = []
    for path in package_files():
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] != "nemo_brorl" or len(parts) < 2 or parts[1] not in level or parts[1] == unit(path):
                continue
            if level.get(unit(path), -1) <= level[parts[1]]:
                wrong.append(f"{name(path)}:{line} imports {module}, which is not on a lower shelf")
    assert not wrong, "\n".join(wrong)


def test_heavy_libraries_are_imported_by_their_owner_only() -> None:
    wrong = [
        f"{name(path)}:{line} imports {module}, which belongs to {OWNERS[module.split('.')[0]]}"
        for path in package_files()
        for line, module in imports(path)
        if OWNERS.get(module.split(".")[0], unit(path)) != unit(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_planning_code_does_not_import_torch() -> None:
    wrong = [
        f"{name(path)}:{line}"
        for path in package_files()
        for line, module in imports(path)
        if unit(path) in TORCH_FREE and module.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_the_launcher_knows_only_the_configuration() -> None:
    wrong = [
        f"{name(path)}:{line} imports {module}"
        for path in sorted((ROOT / "launcher").rglob("*.py"))
        for line, module in imports(path)
        if module.startswith("nemo_brorl") and not module.startswith(LAUNCHER_MAY_IMPORT)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_launcher_needs_only_what_a_login_node_has() -> None:
    """It runs where jobs are submitted, maybe without the stack: only what runs inside the job, or measures a machine, may import that."""
    allowed = {"nemo_brorl", "launcher", "omegaconf", "hydra", "yaml", *sys.stdlib_module_names}
    inside = {"ray_watch.py": {"ray"}, "cpu_probe.py": {"torch"}}
    wrong = [
        f"{name(path)}:{line} imports {module}"
        for path in sorted((ROOT / "launcher").rglob("*.py"))
        for line, module in imports(path)
        if module.split(".")[0] not in allowed | inside.get(path.name, set())
    ]
    assert not wrong, "\n".join(wrong)


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
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES and not has_reason(path, node.lineno, "long")
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
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print" and path.name not in MAY_PRINT
    ]
    assert not wrong, "\n".join(wrong)


def repository_texts() -> Iterator[tuple[Path, str]]:
    """Every text file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
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
