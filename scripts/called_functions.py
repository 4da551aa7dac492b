"""Print which functions of the backend a command calls, in all of its processes, and their share of the code.

    python scripts/called_functions.py --trace FOLDER -- train --config-name sums_cpu trainer.max_steps=2
    python scripts/called_functions.py --trace FOLDER [--never]

The first line runs `python -m nemo_brorl train …` and records the first call of every function in FOLDER, one file for
each process: driver, engines, ranks, verifiers and the processes that they start or fork. Several commands may add to
one folder. Both lines print the contents of the folder. A function's lines are its own, without those of nested
functions. Class bodies and lambdas are not counted.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "nemo_brorl"
RANK = PACKAGE / "policy" / "rank" / "worker.py"
# Every Python process imports `sitecustomize` when it starts. It changes each function of the backend, at import, to
# record its own first call. A profiler would not see the threads that Ray creates in C++. Calls are written at once,
# because processes may be killed.
TRACER = """
import ast, builtins, importlib.machinery, os, sys

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
recorded = set()

def record_call(place):
    if place not in recorded:
        recorded.add(place)
        with open(os.path.join(os.environ["TRACE_FOLDER"], f"{os.getpid()}.calls"), "a") as file:
            file.write(place + chr(10))

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        path = self.get_filename(name)
        tree = ast.parse(self.get_data(path))
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                call = ast.parse(f"__record_call__({f'{path}:{line}'!r})").body[0]
                has_docstring = ast.get_docstring(node, clean=False) is not None
                for part in ast.walk(call):
                    ast.copy_location(part, node.body[0])
                node.body.insert(1 if has_docstring else 0, call)
        return compile(tree, path, "exec", dont_inherit=True)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != "nemo_brorl":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and str(spec.origin).endswith(".py"):
            spec.loader = Loader(name, spec.origin)
        return spec

builtins.__record_call__ = record_call
os.register_at_fork(after_in_child=recorded.clear)
sys.meta_path.insert(0, Finder)
"""

Place = tuple[str, int]  # file, and line on which the function or its first decorator starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="folder of the notes; made where there is none")
    parser.add_argument("--never", action="store_true", help="also list the modules of which nothing was called")
    parser.add_argument("command", nargs="*", help="of `python -m nemo_brorl`, after --")
    options = parser.parse_args()
    options.trace.mkdir(parents=True, exist_ok=True)
    if options.command:
        run_traced(options.command, options.trace.resolve())
    report(options.trace, options.never)


def run_traced(command: list[str], trace: Path) -> None:
    """Run a command of the backend with the tracer in each of its processes. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(TRACER, encoding="utf-8")
        path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "TRACE_FOLDER": str(trace)}
        subprocess.run([sys.executable, "-m", "nemo_brorl", *command], env=environment, check=True)


def report(trace: Path, lists_never: bool) -> None:
    """Print the functions and lines that were called, with and without the policy's ranks, by folder."""
    functions = {place: lines for file in PACKAGE.rglob("*.py") for place, lines in functions_of(file)}
    everywhere: set[Place] = set()
    without_ranks: set[Place] = set()
    for file in trace.glob("*.calls"):
        called = {place_of(line) for line in file.read_text(encoding="utf-8").splitlines()} & functions.keys()
        everywhere |= called
        if all(name != str(RANK) for name, _ in called):
            without_ranks |= called
    print(f"functions called: {len(everywhere):,} of {len(functions):,}")
    print(f"without the policy's ranks: {len(without_ranks):,}")
    print(f"lines of functions that are called: {share(everywhere, functions)}")
    for room in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()):
        within = {place: lines for place, lines in functions.items() if Path(place[0]).is_relative_to(room)}
        if within:
            print(f"  {room.name:<12} {share(everywhere & within.keys(), within)}")
    if lists_never:
        known = {name for name, _ in functions}
        print(*sorted(known - {name for name, _ in everywhere}), sep="\n")


def share(called: set[Place], functions: dict[Place, int]) -> str:
    """Return the share of called lines among all lines, as text."""
    num_called = sum(functions[place] for place in called)
    num_lines = sum(functions.values())
    return f"{100 * num_called / num_lines:.0f} % ({num_called:,} of {num_lines:,})"


def place_of(line: str) -> Place:
    """Return the file and line of a function from a line that the tracer wrote."""
    name, _, number = line.rpartition(":")
    return name, int(number)


def functions_of(file: Path) -> Iterator[tuple[Place, int]]:
    """Yield the place of each function in a file, with the number of its own lines."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [one for one in ast.walk(node) if one is not node and isinstance(one, type(node))]
            own = span(node) - sum(span(one) for one in inner)
            yield (str(file), first_line(node)), max(own, 1)


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line on which a function starts in Python's view: its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def span(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function from its `def` to its end."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    main()
