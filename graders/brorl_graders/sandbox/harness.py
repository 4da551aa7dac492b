"""The harness in a program's process: it runs the program, then its tests, and reports JSON lines.

A `SandboxProgram` has `source` (the program), `setup` (source that runs before it), `stdin`, `kind`, `tests`, and for
functions `name`. Kinds:

- `main`: the program is a script that reads `stdin` and prints. It has no tests and no reports.
- `call`: each test is a list of arguments for the function `name`, which may be a method of the class `Solution`.
  Reports are `["value", value, index]` (`values.py`).
- `serve`: the program's functions answer a judge (`ProgramEnd`). There are no tests and no reports.
- `judge`: there is no program here. The tests are scripts (`judge.py`) for programs that are served elsewhere.

A test that raises is reported as `["error", text, index]`. The program shares this process and can forge any report, so
reports are untrusted and judged outside.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import inspect
import io
import json
import linecache
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from brorl_graders.sandbox.peer import Peer
from brorl_graders.sandbox.values import encode, refuse, to_data

MAX_LINE = 2**26  # longest call by the judge, in bytes
# Operations that the judge may request on an object, apart from calling it.
OPERATORS = """
eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift iadd isub imul
neg pos abs invert getitem setitem delitem
"""
BUILTINS = "bool len iter next reversed str repr hash int float complex round format isinstance issubclass dir"
MAX_ERROR = 300  # longest error, in characters
SUCCESS, FAILURE = 0, 1  # exit codes
STDIN = "/dev/stdin"
_pythons_open = open
Report = Callable[[str, Any, int], None]  # writes a report of what, value and index


class ProgramEnd(Peer):
    """The program's end of the connection to a judge, which serves the names of the program's module."""

    def __init__(
        self,
        module: types.ModuleType,
        read_from: int,
        write_to: int,
    ) -> None:
        operations: dict[str, Callable[..., Any]] = {
            "names": self._names,
            "setattr": setattr,
            "getattr": _get_attribute,
            "index": operator.index,
            "await": _run_coroutine,
        }
        for name in OPERATORS.split():
            operations[name] = getattr(operator, name)
        for name in BUILTINS.split():
            operations[name] = getattr(builtins, name)
        super().__init__(
            read_from,
            write_to,
            operations,
            MAX_LINE,
        )
        self._module = module
        self._printed = io.StringIO()
        sys.stdout = self._printed

    def keep(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _JudgesFunction):
            return {"yours": value.number}
        if isinstance(value, type) and issubclass(value, BaseException):
            return self.error_class(value)
        if inspect.iscoroutine(value):
            return {"coroutine": self.number_of(value)}
        return {"mine": [self.number_of(value), type(value).__name__]}

    def find(self, kind: str, content: Any) -> Any:
        match kind:
            case "yours":
                return self.find_kept(content)
            case "mine":
                return _JudgesFunction(self, content)
            case "name":
                return _import_value(content)
            case "iterator":
                return iter(self.from_data(content))
            case "object":
                return self._object(*content)
        raise KeyError(kind)

    def result_data(self, call: Callable[..., Any], result: Any, arguments: list[Any]) -> Any:
        """Return the result of a function call as JSON data for the judge process.

        An instance of a class with methods stays in this process, even when the class derives from a plain type.
        """
        if isinstance(call, type) and type(result) is call and _has_methods(call):
            return {"mine": [self.number_of(result), call.__name__]}
        return super().result_data(call, result, arguments)

    def take_printed(self) -> str:
        text = self._printed.getvalue()
        if text:
            self._printed.seek(0)
            self._printed.truncate()
        return text

    def _names(self, *names: str) -> list[list[Any]]:
        """Return [name, value] for those of the given names that the sandboxed program defines."""
        values = vars(self._module)
        return [[name, values[name]] for name in names if name in values]

    def _object(self, name: str, attributes: dict[str, Any]) -> Any:
        """Rebuild an object that the judge process has sent to the process of the sandboxed program.

        It becomes an instance of the program's class of that name, or of an empty class.
        """
        kind = vars(self._module).get(name)
        if not isinstance(kind, type):
            kind = type(
                name,
                (),
                {},
            )
        value: Any = object.__new__(kind)
        vars(value).update(self.from_data(attributes))
        return value


class _JudgesFunction:
    """A function of the judge that was among a call's arguments. Calling it calls the judge."""

    def __init__(self, end: ProgramEnd, number: int) -> None:
        self.number = number
        self._end = end

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._end.call(
            self.number,
            arguments,
            options,
        )


def _get_attribute(value: Any, name: str) -> Any:
    """Return an attribute of a sandboxed program's object. A field of a named tuple must be plain data."""
    found = getattr(value, name)
    if isinstance(value, tuple) and name in getattr(type(value), "_fields", ()):
        to_data(found, refuse)
    return found


def _has_methods(kind: type) -> bool:
    """Return whether a class of the sandboxed program has public methods of its own."""
    if kind.__module__ in sys.stdlib_module_names:
        return False
    return any(inspect.isfunction(value) for name, value in vars(kind).items() if not name.startswith("_"))


def _import_value(path: str) -> Any:
    """Import and return a value of the standard library, given as `module.name` or `module:name`."""
    module, _, name = path.partition(":")
    if not name:
        module, _, name = path.rpartition(".")
    value = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _run_coroutine(coroutine: Any) -> Any:
    import asyncio  # imported here, since it is slow to import and few programs need it

    return asyncio.run(_await(coroutine))


async def _await(coroutine: Any) -> Any:
    return await coroutine


def run(
    program: dict[str, Any],
    report_to: int,
    channels: Sequence[int],
    max_line: int,
) -> int:
    """Run a sandboxed program with its tests in this process, and return the exit code that Python would have.

    `report_to` is the file descriptor for reports. `channels` are the file descriptors by which program and judge talk,
    in lines of at most `max_line` bytes.
    """
    _open_streams()
    report = _make_reporter(report_to)
    if program["kind"] == "judge":
        from brorl_graders.sandbox import judge

        return _run_guarded(
            partial(judge.run, program["tests"], program["setup"], channels, max_line, report), report, -1
        )
    # The time of a program is limited, so that the length of its numbers need not be
    sys.set_int_max_str_digits(0)
    module = types.ModuleType("__main__" if program["kind"] == "main" else "program")
    module.__dict__["__file__"] = "program.py"
    sys.modules[module.__name__] = module
    sys.argv = ["program.py"]
    code = _run_guarded(partial(_execute_program, program, module), report, -1)
    if code == SUCCESS and program["kind"] == "serve":
        read_from, write_to = channels
        end = ProgramEnd(module, read_from, write_to)
        _run_guarded(end.serve, report, -1)
    tests = program["tests"] if code == SUCCESS else []
    for index, arguments in enumerate(tests):
        call = partial(_report_call, report, module, program["name"], arguments, index)
        _run_guarded(call, report, index)
    return _run_guarded(_finish, report, -1) or code


def _execute_program(program: dict[str, Any], module: types.ModuleType) -> None:
    """Run the setup code and then the program, since `from __future__` must come first in the program."""
    builtins.open = _open_file
    for name in ("setup", "source"):
        source = program[name]
        file = f"{name}.py" if name == "setup" else "program.py"
        linecache.cache[file] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            file,
        )  # lets inspect.getsource find the source
        code = compile(source, file, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def _open_file(file: Any, *arguments: Any, **options: Any) -> Any:
    """Open a file as Python's `open` does, or standard input as /dev/stdin even where that file does not exist."""
    if file == STDIN:
        file = os.dup(0)
    return _pythons_open(file, *arguments, **options)


def _report_call(
    report: Report,
    module: types.ModuleType,
    name: str,
    arguments: list[Any],
    index: int,
) -> None:
    function = module.__dict__.get(name)
    if function is None:
        solution = module.__dict__["Solution"]()
        function = getattr(solution, name)
    report("value", function(*arguments), index)


def _run_guarded(work: Callable[[], object], report: Report, index: int) -> int:
    """Run a part of a sandboxed program, report its exception, and return the exit code that Python would have."""
    try:
        work()
    except SystemExit as end:
        return SUCCESS if end.code in (None, 0) else FAILURE
    except BaseException as error:  # noqa: BLE001 whatever a program raises is its failure, KeyboardInterrupt and GeneratorExit too
        message = f"{type(error).__name__}: {error}"
        report("error", message[:MAX_ERROR], index)
        return FAILURE
    return SUCCESS


def _make_reporter(file: int) -> Report:
    def report(what: str, value: Any, index: int) -> None:
        text = f"[{json.dumps(what)}, {encode(value)}, {index}]\n"
        line = text.encode()
        while line:
            num_written = os.write(file, line)
            line = line[num_written:]

    return report


def _open_streams() -> None:
    """Open the standard streams of a sandboxed program over its file descriptors, as a new interpreter does."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__ = sys.stdin  # type: ignore[misc]
    sys.__stdout__ = sys.stdout  # type: ignore[misc]
    sys.__stderr__ = sys.stderr  # type: ignore[misc]


def _finish() -> None:
    """Do what Python does before it exits: wait for threads, run exit functions, flush the output."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
