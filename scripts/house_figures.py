"""Print sizes of the packages and how much they know of each other: `scripts/house_figures.py [--run] [CHECKOUT ...]`.

There is one column for each checkout, older ones first, this one last. Everything is counted from the text of the
files, and nothing is imported. "What a training run can import" is the static closure of imports from `commands/train`
and the modules that actors and child processes start with, including imports inside functions. "Doors" are modules in
a folder of a package that its modules outside of this folder import. Code lines are neither blank nor docstring nor
comment. `--run` also counts the functions of the backend that a run of two steps calls, in about two minutes.

The exit code is 1 where a figure of this checkout is above its bound in `scripts/bounds.toml`.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folder of each package within a checkout.
PACKAGES = dict(nemo_brorl=".", brorl_graders="graders", brorl_lab="lab", brorl_launcher="launcher", bench=".")
OTHER_FOLDERS = ("graders/bench", "lab/studies", "scripts", "examples")
SIZES = tomllib.loads((ROOT / "scripts/bounds.toml").read_text(encoding="utf-8"))["size"]
BOUNDS = {f"{name}: {kind}": bound for name, bounds in SIZES.items() for kind, bound in bounds.items()}
STARTED_BY_NAME = re.compile(r"\.(?:child|fork_server|harness|episode_process|engine_actor|worker|writer)$")
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
def kinds(path: Path) -> Counter[str]:
    """Return the numbers of lines of code, docstrings and comments in a Python file."""
    text = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    rest = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in docstrings]
    comments = sum(line.startswith("#") for line in rest)
    return Counter(code=sum(map(bool, rest)) - comments, docstrings=len(docstrings), comments=comments)


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


def doors(root: Path, package: str) -> int:
    """Return the number of modules in folders of a package that its modules outside of their folder import."""
    own = {module: path for module, path in modules(root).items() if module.split(".")[0] == package}
    top = root / PACKAGES[package] / package
    rooms = {module: path.relative_to(top).parts[0] for module, path in own.items() if path.parent != top}
    return len({target for module, target in edges(own) if target in rooms and rooms.get(module) != rooms[target]})


def growth(root: Path) -> dict[str, int]:
    """Return the lines of each kind and the doors of each package, and of everything but tests."""
    counts = {}
    for package, place in PACKAGES.items():
        counts[package] = sum(map(kinds, (root / place / package).rglob("*.py")), Counter())
        counts[package]["doors"] = doors(root, package)
    others = [path for folder in OTHER_FOLDERS for path in (root / folder).rglob("*.py")]
    counts["other folders"] = sum(map(kinds, others), Counter())
    counts["in all"] = sum(counts.values(), Counter())
    return {f"{name}: {kind}": count for name, found in counts.items() for kind, count in found.items()}


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
    return found | {name: f"{count:,}" for name, count in growth(root).items()}


def functions_of_a_run() -> dict[str, int]:
    """Run two steps of sums_cpu in a temporary folder, and return how many functions of the backend they call."""
    with tempfile.TemporaryDirectory() as folder:
        tracer = [sys.executable, str(ROOT / "scripts/called_functions.py"), "--trace", f"{folder}/trace", "--"]
        overrides = ["trainer.max_steps=2", f"exp_manager.explicit_log_dir={folder}/run"]
        command = [*tracer, "train", "--config-name", "sums_cpu", *overrides]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.findall(r"^(functions called|without the policy's ranks): ([\d,]+)", printed, re.MULTILINE)
    return {f"two-step run: {name}": int(count.replace(",", "")) for name, count in found}


def above(found: dict[str, int]) -> list[str]:
    """Return a message for each figure that is above its bound."""
    over = {name: count - BOUNDS[name] for name, count in found.items() if count > BOUNDS.get(name, count)}
    remedy = "Delete as much, or raise the bound as the header of scripts/bounds.toml allows."
    return [f"{name}={found[name]:,}: {excess:,} above its bound. {remedy}" for name, excess in over.items()]


def main() -> int:
    """Print the figures, one column a checkout, and return 1 where this checkout is above a bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("checkouts", nargs="*", type=Path)
    options = parser.parse_args()
    columns = [figures(root.resolve()) for root in options.checkouts] + [figures(ROOT)]
    for name in columns[-1]:
        print(f"{name:<50}" + "".join(f"{column[name]:>18}" for column in columns))
    run = functions_of_a_run() if options.run else {}
    for name, count in run.items():
        print(f"{name:<50}{count:>18,}")
    messages = above(growth(ROOT) | run)
    print(*messages, sep="\n", end="\n" if messages else "", file=sys.stderr)
    return int(bool(messages))


if __name__ == "__main__":
    raise SystemExit(main())
