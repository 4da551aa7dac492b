"""Print sizes of the four packages and how much they know of each other: `scripts/house_figures.py [CHECKOUT ...]`.

There is one column for each checkout, older ones first, this one last. Everything is counted from the text of the
files, and nothing is imported. "What a training run can import" is the static closure of imports from `commands/train`
and the modules that actors and child processes start with, including imports inside functions.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folder of each package within a checkout.
PACKAGES = {"nemo_brorl": ".", "brorl_graders": "graders", "brorl_lab": "lab", "brorl_launcher": "launcher"}
STARTED_BY_NAME = re.compile(r"\.(?:child|fork_server|harness|episode_process|engine_actor|worker|writer)$")
LONGEST = 10
# Settings of rollouts and dynamic_sampling that select how batches are sampled.
MODES = ("allocation", "unfinished", "overlap", "fill", "mean_over", "order", "in_flight", "carry_over", "enabled")

Modules = dict[str, Path]


@cache
def modules(root: Path) -> Modules:
    """Return the file of every module in a checkout, by dotted name."""
    found = {}
    for package, place in PACKAGES.items():
        folder = root / place / package
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def lines(path: Path) -> int:
    """Return the number of lines in a text file."""
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return the dotted names that a file imports; `from a import b` counts as `a.b`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def module_of(dotted: str, known: Modules) -> str | None:
    """Return the known module that an imported name is, or belongs to; None for other packages."""
    if dotted in known:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in known else None


def edges(known: Modules) -> Iterator[tuple[str, str]]:
    """Yield every import between two modules of a checkout as (importer, imported)."""
    for module, path in known.items():
        targets = {module_of(name, known) for name in imported(path)}
        yield from ((module, target) for target in targets if target not in (None, module))


def closure(known: Modules) -> set[str]:
    """Return the names of all modules that a training run can import."""
    of_module: dict[str, set[str]] = {}
    for module, target in edges(known):
        of_module.setdefault(module, set()).add(target)
    left = [name for name in known if name == "nemo_brorl.commands.train" or STARTED_BY_NAME.search(name)]
    seen: set[str] = set()
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += of_module.get(module, ())
    return seen


def names_between(known: Modules, importer: str, owner: str) -> int:
    """Return how many different names of package `owner` the modules of package `importer` import."""
    found = set()
    for module, path in known.items():
        if module.split(".")[0] == importer:
            found |= {name for name in imported(path) if name.split(".")[0] == owner}
    return len(found)


def mutual_folders(known: Modules) -> int:
    """Return the number of pairs of folders that import each other, including parent and child."""
    folders = {module: str(path.parent) for module, path in known.items()}
    pairs = {(folders[module], folders[target]) for module, target in edges(known)}
    return sum(one < other and (other, one) in pairs for one, other in pairs)


def comments(paths: list[Path]) -> float:
    """Return the number of comment lines per 1,000 lines of the given files."""
    texts = [line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return 1000 * sum(text.startswith("#") for text in texts) / len(texts)


def declarations(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the settings that a Python file declares as class, name, and declaring call."""
    for section in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(section, ast.ClassDef):
            continue
        for field in section.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
                assert isinstance(field.target, ast.Name)
                yield section.name, field.target.id, field.value


def num_settings(root: Path) -> int:
    """Return the number of declared settings, without sections."""
    calls = [call for path in (root / "nemo_brorl/config").glob("*.py") for _, _, call in declarations(path)]
    return sum(ast.unparse(call.func) in ("setting", "auto") for call in calls)


def sampling_modes(root: Path) -> int:
    """Return the number of combinations of the settings that select how batches are sampled."""
    modes = 1
    for section, name, call in declarations(root / "nemo_brorl/config/rollouts.py"):
        if section not in ("RolloutsConfig", "DynamicSamplingConfig") or name not in MODES:
            continue
        choices = [word.value for word in call.keywords if word.arg == "choices"]
        modes *= len(choices[0].elts) if choices and isinstance(choices[0], ast.Tuple) else 2
    return modes


def figures(root: Path) -> dict[str, str]:
    """Return all figures of a checkout of this repository, by name."""
    known = modules(root)
    found = {}
    for package in PACKAGES:
        own = [path for module, path in known.items() if module.split(".")[0] == package]
        found[f"{package}: lines, modules"] = f"{sum(map(lines, own)):,} / {len(own)}"
    backend = [path for module, path in known.items() if module.split(".")[0] == "nemo_brorl"]
    reached = [name for name in closure(known) if name.startswith("nemo_brorl")]
    size = sum(lines(known[name]) for name in reached)
    found["backend that a training run can import"] = f"{size:,} / {len(reached)}"
    found["names of the graders in the backend"] = str(names_between(known, "nemo_brorl", "brorl_graders"))
    found["names of the backend in the graders"] = str(names_between(known, "brorl_graders", "nemo_brorl"))
    found["pairs of folders that import each other"] = str(mutual_folders(known))
    found["settings declared"] = str(num_settings(root))
    found["sampling modes"] = f"{sampling_modes(root):,}"
    trainer = root / "nemo_brorl/training/trainer.py"
    own_imports = re.findall(r"^from nemo_brorl", trainer.read_text(encoding="utf-8"), re.MULTILINE)
    found["training/trainer.py: lines, imports of ours"] = f"{lines(trainer)} / {len(own_imports)}"
    longest = sorted(backend, key=lines, reverse=True)[:LONGEST]
    found[f"comments in 1,000 lines, {LONGEST} longest files"] = f"{comments(longest):.1f}"
    found["bench/: lines"] = f"{sum(map(lines, (root / 'bench').rglob('*.py'))):,}"
    return found


def main(checkouts: list[str]) -> None:
    """Print the figures, with one column for each checkout."""
    columns = [figures(Path(root).resolve()) for root in checkouts] + [figures(ROOT)]
    for name in columns[-1]:
        print(f"{name:<50}" + "".join(f"{column[name]:>18}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
