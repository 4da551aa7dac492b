"""Print how large the houses are, and how they know each other: `scripts/house_figures.py [CHECKOUT ...]`.

One column a checkout, older ones first, this one last. Everything is counted from the text of the files; nothing is
imported. What a training run can import is the static closure of imports from `commands/train` and the modules that
actors and child processes start with; imports inside functions count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The folder of a checkout that holds each package.
PACKAGES = {"nemo_brorl": ".", "brorl_graders": "graders", "brorl_lab": "lab", "brorl_launcher": "launcher"}
STARTED_BY_NAME = re.compile(r"\.(?:child|fork_server|harness|episode_process|engine_actor|worker|writer)$")
LONGEST = 10
# Settings of rollouts and dynamic_sampling that choose between ways of sampling.
MODES = ("allocation", "unfinished", "overlap", "fill", "mean_over", "order", "in_flight", "carry_over", "enabled")

Modules = dict[str, Path]


@cache
def modules(root: Path) -> Modules:
    """Dotted name of every module of a checkout."""
    found = {}
    for package, place in PACKAGES.items():
        folder = root / place / package
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports; `from a import b` is `a.b`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def module_of(dotted: str, known: Modules) -> str | None:
    """The module that an imported name is, or is a name of."""
    if dotted in known:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in known else None


def edges(known: Modules) -> Iterator[tuple[str, str]]:
    """Imports between two modules of a checkout."""
    for module, path in known.items():
        targets = {module_of(name, known) for name in imported(path)}
        yield from ((module, target) for target in targets if target not in (None, module))


def closure(known: Modules) -> set[str]:
    """Modules that a training run can import."""
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
    """How many different names the modules of one package import from another package."""
    found = set()
    for module, path in known.items():
        if module.split(".")[0] == importer:
            found |= {name for name in imported(path) if name.split(".")[0] == owner}
    return len(found)


def mutual_folders(known: Modules) -> int:
    """Pairs of folders of which each imports the other, parent and child included."""
    folders = {module: str(path.parent) for module, path in known.items()}
    pairs = {(folders[module], folders[target]) for module, target in edges(known)}
    return sum(one < other and (other, one) in pairs for one, other in pairs)


def comments(paths: list[Path]) -> float:
    """Comments on a line of their own, in 1,000 lines."""
    texts = [line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return 1000 * sum(text.startswith("#") for text in texts) / len(texts)


def declarations(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Settings that a file declares: class, name, and the call that declares it."""
    for section in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(section, ast.ClassDef):
            continue
        for field in section.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
                assert isinstance(field.target, ast.Name)
                yield section.name, field.target.id, field.value


def num_settings(root: Path) -> int:
    """Settings that are declared, sections not counted."""
    calls = [call for path in (root / "nemo_brorl/config").glob("*.py") for _, _, call in declarations(path)]
    return sum(ast.unparse(call.func) in ("setting", "auto") for call in calls)


def sampling_modes(root: Path) -> int:
    """Combinations of the settings that decide how a batch is sampled."""
    modes = 1
    for section, name, call in declarations(root / "nemo_brorl/config/rollouts.py"):
        if section not in ("RolloutsConfig", "DynamicSamplingConfig") or name not in MODES:
            continue
        choices = [word.value for word in call.keywords if word.arg == "choices"]
        modes *= len(choices[0].elts) if choices and isinstance(choices[0], ast.Tuple) else 2
    return modes


def figures(root: Path) -> dict[str, str]:
    """All figures of a checkout, by name."""
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
    """Print a column a checkout."""
    columns = [figures(Path(root).resolve()) for root in checkouts] + [figures(ROOT)]
    for name in columns[-1]:
        print(f"{name:<50}" + "".join(f"{column[name]:>18}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
