"""Prepare the test scripts of data sets for a judge (`sandbox/judge.py`).

It finds out which names the tested program must define, and marks where something is asserted. A script that a judge
could not run, or that would assert nothing, is refused.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import symtable
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from brorl_graders.sandbox.limits import COPY, MARK

NUM_KEPT = 64  # scripts that a process caches
PROMPT = ">>> "  # prompt of an interactive session
# Names under which test scripts import the program.
PROGRAM_MODULES = ("solution", "main", "program", "__main__")
# Names that scripts use without importing them, because the program was expected to.
SHORT_NAMES = {"np": "import numpy as np", "numpy": "import numpy"}
STANDARD_NAMES = {
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"),
    "datetime": ("date", "timedelta"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "math": ("inf", "isclose", "nan", "pi"),
    "typing": ("Any", "Dict", "List", "Optional", "Set", "Tuple", "Union"),
}
# Modules and names that programs use without importing them, because contest sites and editors import them.
USUAL_MODULES = (
    "bisect",
    "collections",
    "copy",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "os",
    "random",
    "re",
    "statistics",
    "string",
    "sys",
    "time",
    "typing",
)
USUAL_NAMES = {
    "bisect": ("bisect_left", "bisect_right", "insort", "insort_left", "insort_right"),
    "collections": (*STANDARD_NAMES["collections"], "ChainMap"),
    "copy": ("deepcopy",),
    "datetime": ("timedelta",),
    "decimal": ("Decimal", "getcontext"),
    "fractions": ("Fraction",),
    "functools": ("cache", "cmp_to_key", "lru_cache", "partial", "reduce"),
    "heapq": ("heapify", "heappop", "heappush", "heappushpop", "heapreplace", "nlargest", "nsmallest"),
    "itertools": (
        "accumulate",
        "chain",
        "combinations",
        "combinations_with_replacement",
        "count",
        "cycle",
        "groupby",
        "islice",
        "pairwise",
        "permutations",
        "product",
        "repeat",
        "starmap",
        "takewhile",
        "zip_longest",
    ),
    "math": (
        "ceil",
        "comb",
        "factorial",
        "floor",
        "gcd",
        "hypot",
        "inf",
        "isqrt",
        "lcm",
        "log",
        "log10",
        "log2",
        "perm",
        "pi",
        "prod",
        "sqrt",
    ),
    "operator": ("itemgetter", "attrgetter"),
    "string": ("ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits"),
    "typing": (
        *STANDARD_NAMES["typing"],
        "Callable",
        "Deque",
        "FrozenSet",
        "Generator",
        "Iterable",
        "Iterator",
        "Sequence",
    ),
}
USUAL_IMPORTS = {name: f"import {name}" for name in USUAL_MODULES}
for _module, _members in USUAL_NAMES.items():
    USUAL_IMPORTS |= {name: f"from {_module} import {name}" for name in _members}
# Calls and modules that could run what a program returns, or that cannot work from the judge's process.
REFUSED_CALLS = ("eval", "exec", "compile", "globals", "__import__")
REFUSED_MODULES = ("ctypes", "importlib", "inspect", "marshal", "pickle", "subprocess")


class Script(NamedTuple):
    """A test script that is ready for a judge."""

    source: str
    names: tuple[str, ...]  # names that the program must define
    tested: tuple[str, ...]  # names that must come from the program, even if Python has them too
    modules: frozenset[str]  # modules that the script imports

    def for_judge(self) -> dict[str, Any]:
        """Return the source and the names of a test script in the form that the process that runs it receives."""
        return {
            "source": self.source,
            "names": self.names,
            "tested": self.tested,
        }


@lru_cache(maxsize=NUM_KEPT)
def read_script(source: str, entry_point: str = "") -> Script:
    """Prepare a test script of a programming task for the judge, which is the process that runs test scripts.

    `entry_point` names the function under test. If the script defines `check`, it is called with that function. Raises
    ValueError with the reason if a judge cannot run the script.
    """
    try:
        tree = _parsed(source)
        marks = _Marks()
        marks.visit(tree)
        ast.fix_missing_locations(tree)
        _check(tree, marks)
        if entry_point and "check" in _functions(tree):
            tree.body.append(ast.parse(f"check({entry_point})").body[0])
        text = ast.unparse(tree)
        read, bound = _names(text)
        free = (read | _names_in_sessions(tree)) - bound
        if not marks.num_marks:
            raise ValueError("it asserts nothing")
        if _asserts_in_vain(tree, read):
            raise ValueError("it never calls the function that asserts: name what is to be tested in entry_point")
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    free |= marks.names
    names, tested = _names_of_program(tree, free, entry_point)
    head = _imports(free - set(names))
    modules = marks.modules | {line.split()[1] for line in head}
    return Script("\n".join([*head, text]), names, tested, frozenset(modules))


def modules_of(source: str) -> frozenset[str]:
    """Return the top-level modules that a Python source imports.

    A source that does not parse has none.
    """
    marks = _Marks()
    try:
        marks.visit(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(marks.modules)


def usual_imports(source: str, setup: str = "") -> dict[str, str]:
    """Return the import statements of usual names that a program reads, by name, where it and its setup have none.

    A program that does not compile needs none, and neither does one whose setup must stand first.
    """
    if "__future__" in setup:
        return {}
    try:
        read, bound = _names(source)
        missing = (read - bound).intersection(USUAL_IMPORTS)
        if missing:
            missing -= _names(setup)[1]
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {name: USUAL_IMPORTS[name] for name in sorted(missing)}


class _Marks(ast.NodeTransformer):
    """Rewrites a test script so that each assertion reports that it was reached, and collects the script's imports.

    Starred arguments are copied, and those that stand twice in a comparison: in `f(x) == sorted(x)` the program could
    otherwise change the expected result. A call that is a statement is there for what it changes.
    """

    def __init__(self) -> None:
        self.num_marks = 0
        self.modules: set[str] = set()
        self.names: set[str] = set()  # names imported from the program

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        return self._marked(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node.value)
        if not _is_assertion(node.value):
            return node
        _copy_repeated(node.value)
        return self._marked(node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                argument.value = _copied(argument.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if not any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
            _copy_repeated(node)
        return node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        is_assertion = any(_is_assertion(item.context_expr) for item in node.items)
        return self._marked(node) if is_assertion else node

    def visit_Import(self, node: ast.Import) -> Any:
        self.modules.update(alias.name.partition(".")[0] for alias in node.names)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.module not in PROGRAM_MODULES:
            self.modules.add(str(node.module).partition(".")[0])
            return node
        self.names.update(alias.name for alias in node.names)
        renamed = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
        return ast.parse("\n".join(renamed) or "pass").body

    def _marked(self, node: ast.stmt) -> list[ast.stmt]:
        self.num_marks += 1
        mark = ast.Call(ast.Name(MARK), [], [])
        return [ast.Expr(mark), node]


def _copy_repeated(comparison: ast.expr) -> None:
    """Have the calls in a comparison get copies of those arguments that stand elsewhere in it too."""
    nodes = list(ast.walk(comparison))
    places = Counter(ast.dump(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute | ast.Subscript))
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        for index, argument in enumerate(call.args):
            if places[ast.dump(argument)] > 1:
                call.args[index] = _copied(argument)
        for option in call.keywords:
            if places[ast.dump(option.value)] > 1:
                option.value = _copied(option.value)


def _copied(argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(COPY), [argument], [])


def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a test script.

    An interactive session (`>>>`) becomes one assertion that it runs as written. Raises ValueError for a script that
    does not compile.
    """
    try:
        return ast.parse(source)
    except SyntaxError as error:
        if not source.lstrip().startswith(PROMPT):
            raise ValueError(f"it does not compile: {error}") from error
    lines = [
        "import doctest",
        f"session = doctest.DocTestParser().get_doctest({source!r}, globals(), 'session', None, 0)",
        "assert doctest.DocTestRunner(verbose=False).run(session).failed == 0",
    ]
    return ast.parse("\n".join(lines))


def _names_in_sessions(tree: ast.Module) -> set[str]:
    """Return the names that interactive sessions (`>>>`) in a test script's texts read without defining them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(text, str) or PROMPT not in text:
            continue
        examples = doctest.DocTestParser().get_examples(text)
        read, bound = _names("".join(example.source for example in examples))
        found |= read - bound
    return found


def _is_assertion(node: ast.expr) -> bool:
    """Return whether an expression is a call that asserts something.

    Examples are `self.assertEqual(…)`, `np.testing.assert_allclose(…)` and `pytest.raises(…)`.
    """
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name.startswith("assert") or name == "raises"


def _check(tree: ast.Module, marks: _Marks) -> None:
    """Raise ValueError for a test script whose imports or calls could run, or look into, the program under test."""
    wrong = marks.modules.intersection(REFUSED_MODULES)
    if wrong:
        raise ValueError(f"it imports {min(wrong)}, with which a judge would run, or look into, the program")
    for call in _calls(tree):
        is_constant = bool(call.args) and isinstance(call.args[0], ast.Constant)
        is_session = call.func.id == "globals" and "doctest" in marks.modules
        if call.func.id in REFUSED_CALLS and not is_constant and not is_session:
            raise ValueError(f"it calls {call.func.id}, which could run what the program returns")


class _NamedCall(NamedTuple):
    """A call of a function by its name, in a syntax tree."""

    func: ast.Name
    args: list[ast.expr]


def _calls(tree: ast.Module) -> Iterator[_NamedCall]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield _NamedCall(node.func, node.args)


def _functions(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _asserts_in_vain(tree: ast.Module, used: set[str]) -> bool:
    """Return whether all assertions of a test script are in functions that are never called.

    A function counts as called if the script uses its name, or if a test runner would call it.
    """
    for node in tree.body:
        is_called = not isinstance(node, ast.FunctionDef) or node.name.startswith("test") or node.name in used
        marks = [name for name in ast.walk(node) if isinstance(name, ast.Name) and name.id == MARK]
        if marks and is_called:
            return False
    return True


def _names(source: str) -> tuple[set[str], set[str]]:
    """Return the global names that a test script reads, and those that it defines."""
    top = symtable.symtable(source, "tests.py", "exec")
    read = {MARK, COPY}
    bound = {MARK, COPY}
    for symbol in top.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
            bound.add(symbol.get_name())
        if symbol.is_referenced():
            read.add(symbol.get_name())
    tables = top.get_children()
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                read.add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned():
                bound.add(symbol.get_name())
    return read, bound


def _names_of_program(
    tree: ast.Module,
    free: set[str],
    entry_point: str,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that the tested program must define, and those that must come from the program alone.

    Names that Python itself has are left out, unless the test script uses no others of the program. Then the name that
    the script calls is under test. Raises ValueError if the script uses nothing of the program, or if it is unclear
    which name is under test.
    """
    called = {call.func.id for call in _calls(tree)} & free
    names = {name for name in free if not _is_known(name)}
    names |= {name for name in called if _is_module(name)}  # functions, since modules are not callable
    if entry_point:
        return tuple(sorted(names | {entry_point})), (entry_point,)
    if names:
        return tuple(sorted(names)), ()
    if not called:
        raise ValueError("it uses nothing of the program")
    if len(called) > 1:
        raise ValueError(f"which of {', '.join(sorted(called))} it tests is not clear: name it in entry_point")
    return tuple(called), tuple(called)


def _is_known(name: str) -> bool:
    return hasattr(builtins, name) or _import_of(name) is not None


def _is_module(name: str) -> bool:
    return not hasattr(builtins, name) and _import_of(name) == f"import {name}"


def _import_of(name: str) -> str | None:
    """Return the import statement for a name that test scripts use without importing it, or None if none is known."""
    if name in SHORT_NAMES:
        return SHORT_NAMES[name]
    for module, names in STANDARD_NAMES.items():
        if name in names:
            return f"from {module} import {name}"
    return f"import {name}" if name in sys.stdlib_module_names else None


def _imports(names: set[str]) -> list[str]:
    found = []
    for name in sorted(names):
        statement = _import_of(name)
        if statement is not None and not hasattr(builtins, name):
            found.append(statement)
    return found
