"""The judge of test scripts, in a process that no program can see.

A script runs here, and the names that it does not define are objects that ask the program (`Remote`). So the expected
values, and what is done with them, never reach the program's process.

A test of the judge's program is a script. Its `source` calls `MARK` before each assertion. `names` are those that the
program defines, and `tested` those of them that count even where `setup` defines them too. A judge serves one test and
one program after another, and knows of a program only plain data.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from brorl_graders.sandbox.limits import COPY, MARK
from brorl_graders.sandbox.peer import MUTABLE, Peer, is_library_error
from brorl_graders.sandbox.values import LISTS

# Operators between two objects of the program, and operators of one object.
BINARY = "eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift iadd isub imul"
UNARY = "neg pos abs invert bool len str repr hash int float complex index round format reversed dir"
PLAIN = (str, bytes, list, tuple, set, dict, int, float, complex)
# Names with double underscores that may be read. Libraries inspect objects by the other names.
READABLE = ("__name__", "__qualname__", "__doc__", "__dict__", "__annotations__", "__defaults__")
ARRAY_METHODS = ("equals", "all", "any", "array_equal", "allclose")
NEXT = "next"  # the only operation that may end an iteration
# Exceptions of these modules control test runners, so a program may not raise them.
CONTROL_MODULES = ("unittest", "doctest")
MAX_ERROR = 300  # longest error, in characters
Report = Callable[[str, Any, int], None]  # writes a report of what, value and index


class JudgeEnd(Peer):
    """The judge's end of the connection to a program, which represents the program's objects."""

    hears_program = True

    def __init__(self, read_from: int, write_to: int, max_line: int) -> None:
        super().__init__(read_from, write_to, {}, max_line)
        self._remotes: dict[int, Remote] = {}
        self._errors: dict[int, type[BaseException]] = {}
        self._kinds: dict[str, type[Remote]] = {}

    def names(self, names: list[str]) -> dict[str, Any]:
        """Return the values of these names in the sandboxed program, without the names that it does not define."""
        answer: dict[str, Any] = dict(self.call("names", names, {}))
        values: dict[str, Any] = {}
        for name in names:  # only requested names, whatever the program sends
            if name not in answer:
                continue
            value = answer[name]
            values[name] = value
            if isinstance(value, Remote):
                object.__setattr__(value, "_remote_is_class", name[:1].isupper())
        return values

    def call(
        self,
        function: int | str,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """Call a function of the program and return its result, but do not let it end an iteration by StopIteration.

        Only a request for the next item may end an iteration. Otherwise the program could end a `map` of the test
        early, and the remaining cases would be skipped. Any other StopIteration becomes a RuntimeError.
        """
        try:
            return super().call(function, arguments, options)
        except (StopIteration, StopAsyncIteration) as error:
            if function == NEXT:
                raise
            raise RuntimeError("the program raised StopIteration") from error

    def keep(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Remote):
            return {"yours": value._remote_number}
        kind = type(value)
        if kind.__name__ in LISTS or hasattr(kind, "__next__"):
            return {"iterator": [self.to_data(item) for item in value]}
        if callable(value):
            return self._function(value)
        if hasattr(value, "__dict__"):
            return {"object": [kind.__name__, self.to_data(vars(value))]}
        raise TypeError(f"a value of type {kind.__name__} cannot be given to a program")

    def find(self, kind: str, content: Any) -> Any:
        match kind:
            case "mine":
                return self._remote(*content)
            case "yours":
                return self.find_kept(content)
            case "name":
                return _find_error(content)
            case "error":
                return self._error(*content)
            case "coroutine":
                return self._await(content)
        raise KeyError(kind)

    def _function(self, value: Callable[..., Any]) -> dict[str, Any]:
        """Return JSON data that identifies a function of the judge process to the program's process.

        This is its import path where the program's process has the function too, otherwise a number.
        """
        module = getattr(value, "__module__", None)
        path = getattr(value, "__qualname__", "")
        if module in sys.stdlib_module_names and module != "__main__" and "<" not in path:
            return {"name": f"{module}:{path}"}
        return {"mine": self.number_of(value)}

    def _remote(self, number: int, kind: str) -> Remote:
        if number not in self._remotes:
            if kind not in self._kinds:
                self._kinds[kind] = type(kind, (Remote,), {"__slots__": ()})
            self._remotes[number] = self._kinds[kind](self, number)
        return self._remotes[number]

    def _error(self, number: int, name: str, base: dict[str, Any]) -> type[BaseException]:
        """Return a class of the judge process that represents an exception class of the sandboxed program."""
        if number not in self._errors:
            parent = self.find(*base.popitem())
            methods = {
                "__str__": lambda error: vars(error).get("text", ""),
                "__getattr__": lambda error, attribute: self._attribute(error, attribute),
            }
            self._errors[number] = type(name, (parent,), methods)
        return self._errors[number]

    def _attribute(self, error: BaseException, name: str) -> Any:
        if name.startswith("__") or "remote_number" not in vars(error):
            raise AttributeError(name)
        return self.call("getattr", [self._remote(vars(error)["remote_number"], "error"), name], {})

    async def _await(self, number: int) -> Any:
        return self.call("await", [self._remote(number, "coroutine")], {})


class Remote:
    """An object of the program, which the judge accesses by calls to the program (`peer.py`).

    Plain data arrives as values of this process. Any other object stays in the program, and the program answers for it.
    Such an object never equals plain data and has no arithmetic with it. If a function returned it, it also lacks the
    methods of plain types, since their arguments would tell the program what the test expects.
    """

    __slots__ = ("_remote_end", "_remote_is_class", "_remote_is_own", "_remote_number")

    def __init__(self, end: JudgeEnd, number: int) -> None:
        object.__setattr__(self, "_remote_end", end)
        object.__setattr__(self, "_remote_number", number)
        object.__setattr__(self, "_remote_is_class", False)  # the test uses a class name for it
        object.__setattr__(self, "_remote_is_own", False)  # the test made it by calling such a class

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._remote_end.call(self._remote_number, arguments, options)
        if self._remote_is_class and isinstance(result, Remote):
            object.__setattr__(result, "_remote_is_own", True)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in READABLE:
            raise AttributeError(name)
        if not (self._remote_is_class or self._remote_is_own) and _is_plain_method(name):
            raise AttributeError(f"what a function returned is no plain data: it has no {name!r} here")
        return _ask(self, "getattr", name)

    def __deepcopy__(self, memo: object) -> Remote:
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", key)

    def __iter__(self) -> Iterator[Any]:
        iterator = _ask(self, "iter")
        return iterator if isinstance(iterator, Remote) else iter(iterator)

    def __next__(self) -> Any:
        return _ask(self, NEXT)

    def __instancecheck__(self, value: Any) -> bool:
        return bool(_ask_about(self, "isinstance", value))

    def __subclasscheck__(self, value: Any) -> bool:
        return bool(_ask_about(self, "issubclass", value))

    def __enter__(self) -> Any:
        return _ask(self, "getattr", "__enter__")()

    def __exit__(self, *error: object) -> None:
        # What it returns is dropped, since the program must not suppress a failed assertion.
        _ask(self, "getattr", "__exit__")(None, None, None)


def _ask(remote: Remote, operation: str, *arguments: Any) -> Any:
    return remote._remote_end.call(operation, [remote, *arguments], {})


def _ask_about(remote: Remote, operation: str, value: Any) -> Any:
    return remote._remote_end.call(operation, [value, remote], {})


def _binary(operation: str) -> Callable[[Remote, Any], Any]:
    def ask(remote: Remote, other: Any) -> Any:
        return _ask(remote, operation, other) if isinstance(other, Remote) else NotImplemented

    return ask


def _unary(operation: str) -> Callable[..., Any]:
    def ask(remote: Remote, *arguments: Any) -> Any:
        return _ask(remote, operation, *arguments)

    return ask


for _name in BINARY.split():
    setattr(Remote, f"__{_name.strip('_')}__", _binary(_name))
for _name in UNARY.split():
    setattr(Remote, f"__{_name}__", _unary(_name))


def _is_plain_method(name: str) -> bool:
    return name in ARRAY_METHODS or any(hasattr(kind, name) for kind in PLAIN)


def _find_error(path: str) -> Any:
    """Return an exception class of the standard library, which the judge's process and the program's both have.

    Raises KeyError for any other path. A built-in class is no value here, since its methods would stand for those of a
    result.
    """
    module, _, name = path.rpartition(".")
    if module not in sys.modules:
        return Exception
    value = getattr(sys.modules[module], name)
    is_error = isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == module
    if not is_error or not is_library_error(value) or module.partition(".")[0] in CONTROL_MODULES:
        raise KeyError(path)
    return value


def run(
    scripts: Sequence[dict[str, Any]],
    setup: str,
    channels: Sequence[int],
    max_line: int,
    report: Report,
) -> None:
    """Run test scripts against one program after another, until the owner of the judge process sends no more orders.

    The last of `channels` brings the orders `[program, indices of scripts]`. Each program has two other channels, to
    read from and to write to. After each order `["end", null, -1]` is reported.
    """
    with open(channels[-1], encoding="ascii") as orders:
        for line in orders:
            program, indices = json.loads(line)
            end = JudgeEnd(channels[2 * program], channels[2 * program + 1], max_line)
            judge(scripts, setup, indices, end, report)
            report("end", None, -1)


def judge(
    scripts: Sequence[dict[str, Any]],
    setup: str,
    indices: Sequence[int],
    end: JudgeEnd,
    report: Report,
) -> None:
    """Run the test scripts of these indices against a program, and report the outcome of each.

    The report is `["done", null, index]` when the script passes, otherwise `["error", text, index]`. Returns early,
    without a report, when the program has exited.
    """
    for index in indices:
        problem = _find_problem(scripts[index], setup, end)
        if end.is_gone:
            return
        if problem is None:
            report("done", None, index)
        else:
            report("error", problem[:MAX_ERROR], index)


def _find_problem(
    script: dict[str, Any],
    setup: str,
    end: JudgeEnd,
) -> str | None:
    """Return why a test script fails for the sandboxed program, or None when it passes."""
    try:
        _run(script, setup, end)
    except SystemExit as error:
        is_of_script = "remote_number" not in vars(error)  # the script raised it, not the program
        if is_of_script and error.code in (None, 0, False):
            return None
        return f"SystemExit: {error}"
    except BaseException as error:  # noqa: BLE001 whatever is raised, the test fails
        return f"{type(error).__name__}: {error}"
    return None


def _run(
    script: dict[str, Any],
    setup: str,
    end: JudgeEnd,
) -> None:
    """Run a test script as a new module `__main__`.

    Raises what the script raises, and AssertionError when no assertion was reached.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["tests.py"]
    unittest.main = lambda *_, **__: None  # type: ignore[assignment]
    _refuse_empty_arrays(script["source"])
    reached: list[None] = []
    namespace = vars(module)
    namespace[MARK] = lambda: reached.append(None)
    namespace[COPY] = _copy_arguments
    exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
    names = [name for name in script["names"] if name in script["tested"] or name not in namespace]
    namespace.update(end.names(names))
    try:
        exec(compile(script["source"], "tests.py", "exec", dont_inherit=True), namespace)
    finally:
        _run_test_cases(namespace)
    if not reached:
        for test in _test_functions(namespace):
            test()
    if not reached:
        raise AssertionError("no assertion was reached")


def _copy_arguments(value: Any) -> Any:
    """Return a copy of test arguments that a program may change, or any other value itself."""
    return copy.deepcopy(value) if isinstance(value, (tuple, *MUTABLE)) else value


def _run_test_cases(namespace: dict[str, Any]) -> None:
    """Run the unittest classes of a test script, whether or not the script runs them itself."""
    suite = unittest.TestSuite()
    for value in list(namespace.values()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(value))
    result = unittest.TestResult()
    suite.run(result)
    for _, text in (*result.errors, *result.failures):
        raise AssertionError(text[-MAX_ERROR:])
    if not result.wasSuccessful():
        raise AssertionError("a test that should fail did not")


def _test_functions(namespace: dict[str, Any]) -> Iterator[Callable[[], object]]:
    """Yield the test functions of a script and of its classes, found by pytest's naming rules."""
    for name, value in list(namespace.items()):
        if name.startswith("test") and inspect.isfunction(value) and not inspect.signature(value).parameters:
            yield value
        is_class = name.startswith("Test") and isinstance(value, type)
        if not is_class or issubclass(value, unittest.TestCase):
            continue
        for method in vars(value):
            if method.startswith("test"):
                yield getattr(value(), method)


def _refuse_empty_arrays(source: str) -> None:
    """Have NumPy's comparisons fail when only one of the arrays is empty, although NumPy finds them equal.

    `source` is the test script. The functions of `numpy.testing` are loaded and changed only when the script uses them.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    for name in ("allclose", "isclose", "array_equiv"):
        _let_check_sizes(numpy, name, numpy)
    if "testing" not in source:
        return
    testing = importlib.import_module("numpy.testing")
    for name in dir(testing):
        if name.startswith("assert_") and name.endswith(("equal", "close", "less")):
            _let_check_sizes(testing, name, numpy)


def _let_check_sizes(module: types.ModuleType, name: str, numpy: types.ModuleType) -> None:
    """Replace a comparison of NumPy by one that fails when one array is empty and the other is not."""
    compare = getattr(module, name)

    def check(
        got: Any,
        expected: Any,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        is_empty = [numpy.asarray(value).size == 0 for value in (got, expected)]
        if is_empty[0] == is_empty[1]:
            return compare(got, expected, *arguments, **options)
        if module is numpy:
            return False
        raise AssertionError("one of them is empty, and the other not")

    setattr(module, name, check)
