"""Harness inside the program process: the program runs, then its tests, and reports go out as JSON lines.

A `SandboxProgram`: `source` (the program), `setup` (source that runs before it), `stdin`, `kind`, `tests`, and for
functions `name`.
Kinds:

- `main`: the program is a script that reads `stdin` and prints. No tests, no reports.
- `call`: each test is a list of arguments for the function `name`, also a method of the class `Solution`. Reports
  `["value", value, index]` (`values.py`).
- `serve`: the program's functions answer a judge (`ProgramEnd`). No tests, no reports.
- `judge`: there is no program here. The tests are scripts (`judge.py`) for programs that are served elsewhere.

A test that raises reports `["error", text, index]`. A program shares this process and may forge all of that: a report
is the program's word and nothing more, which is why it is judged outside.
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
from brorl_graders.sandbox.values import encode

MAX_LINE = 2**26  # bytes of one call, which the judge makes
# What the judge may ask of an object beside calling it.
OPERATORS = """
eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift iadd isub imul
neg pos abs invert getitem setitem delitem
"""
BUILTINS = "bool len iter next reversed str repr hash int float complex round format isinstance issubclass getattr dir"
MAX_ERROR = 300  # characters
SUCCESS, FAILURE = 0, 1  # exit codes
STDIN = "/dev/stdin"
_pythons_open = open
Report = Callable[[str, Any, int], None]  # what, value, index


class ProgramEnd(Peer):
    """Serves the names of a program's module."""

    def __init__(
        self,
        module: types.ModuleType,
        read_from: int,
        write_to: int,
    ) -> None:
        operations: dict[str, Callable[..., Any]] = {
            "names": self._names,
            "setattr": setattr,
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
        if isinstance(value, type):
            if value.__module__ == builtins.__name__:
                return {"name": f"builtins.{value.__qualname__}"}
            if issubclass(value, BaseException):
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
        """As elsewhere; but what a class with methods makes stays here, though it were a list."""
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
        """[name, value] of those that the program has."""
        values = vars(self._module)
        return [[name, values[name]] for name in names if name in values]

    def _object(self, name: str, attributes: dict[str, Any]) -> Any:
        """An object of the judge: one of the program's class of that name, or one of a class that has nothing but the
        name."""
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
    """A function of the judge, among a call's arguments."""

    def __init__(self, end: ProgramEnd, number: int) -> None:
        self.number = number
        self._end = end

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._end.call(
            self.number,
            arguments,
            options,
        )


def _has_methods(kind: type) -> bool:
    """Whether a class of the program has functions of its own that are not private."""
    if kind.__module__ in sys.stdlib_module_names:
        return False
    return any(inspect.isfunction(value) for name, value in vars(kind).items() if not name.startswith("_"))


def _import_value(path: str) -> Any:
    """`module.name` of the standard library."""
    module, _, name = path.partition(":")
    if not name:
        module, _, name = path.rpartition(".")
    value = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _run_coroutine(coroutine: Any) -> Any:
    import asyncio  # which takes long to import, and few programs need it

    return asyncio.run(_await(coroutine))


async def _await(coroutine: Any) -> Any:
    return await coroutine


def run(
    program: dict[str, Any],
    report_to: int,
    channels: Sequence[int],
    max_line: int,
) -> int:
    """Run a program; the exit code. `channels` are the files by which the processes of a test talk, the judge reading
    at most `max_line` bytes at a time."""
    _open_streams()
    report = _make_reporter(report_to)
    if program["kind"] == "judge":
        from brorl_graders.sandbox import judge

        return _run_guarded(
            partial(judge.run, program["tests"], program["setup"], channels, max_line, report), report, -1
        )
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
    """Run setup and program apart, since `from __future__` must come first."""
    builtins.open = _open_file
    for name in ("setup", "source"):
        source = program[name]
        file = f"{name}.py" if name == "setup" else "program.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for inspect.getsource
        code = compile(source, file, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def _open_file(file: Any, *arguments: Any, **options: Any) -> Any:
    """Python's `open`, which knows standard input by its name where there is no such file."""
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
    """The exit code that Python would end with after this work."""
    try:
        work()
    except SystemExit as end:
        return SUCCESS if end.code in (None, 0) else FAILURE
    except BaseException as error:  # noqa: BLE001 whatever a program raises is its failure, KeyboardInterrupt and GeneratorExit as well
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
    """Streams over this run's files, as a new interpreter has them."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__ = sys.stdin  # type: ignore[misc]
    sys.__stdout__ = sys.stdout  # type: ignore[misc]
    sys.__stderr__ = sys.stderr  # type: ignore[misc]


def _finish() -> None:
    """What Python does at its end: wait for threads, run exit functions, flush."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
