"""Harness inside the program process: the program runs, then the parts of the job, and reports go out as JSON lines.

A job: `source` (the program), `setup` (source that runs before it), `stdin`, `kind`, `parts`, and for functions `name`.
Kinds:

- `main`: the program is a script that reads `stdin` and prints. No parts, no reports.
- `call`: each part is a list of arguments for the function `name`, also a method of the class `Solution`. Reports
  `["value", value, index]` (`values.py`).
- `serve`: the program's functions answer a judge (`serve.py`). No parts, no reports.
- `judge`: there is no program here. The parts are test scripts (`judge.py`) for programs that are served elsewhere.

A part that raises reports `["error", text, index]`. A program shares this process and may forge all of that: a report
is the program's word and nothing more, which is why it is judged outside.
"""

from __future__ import annotations

import atexit
import builtins
import json
import linecache
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nemo_brorl.tasks.sandbox.serve import ProgramEnd
from nemo_brorl.tasks.sandbox.values import encode

MAX_ERROR = 300  # characters
SUCCESS, FAILURE = 0, 1  # exit codes
STDIN = "/dev/stdin"
_pythons_open = open
Report = Callable[[str, Any, int], None]  # what, value, index


def run(
    job: dict[str, Any],
    report_to: int,
    channels: Sequence[int],
    max_line: int,
) -> int:
    """Run a job; the exit code. `channels` are the files by which the processes of a test talk, the judge reading at
    most `max_line` bytes at a time."""
    _fresh_streams()
    report = _reporter(report_to)
    if job["kind"] == "judge":
        from nemo_brorl.tasks.sandbox import judge  # which a sandbox for judges has imported

        return _guarded(partial(judge.run, job, channels, max_line, report), report, -1)
    module = types.ModuleType("__main__" if job["kind"] == "main" else "program")
    module.__dict__["__file__"] = "program.py"
    sys.modules[module.__name__] = module
    sys.argv = ["program.py"]
    code = _guarded(partial(_execute_program, job, module), report, -1)
    if code == SUCCESS and job["kind"] == "serve":
        read_from, write_to = channels
        program = ProgramEnd(module, read_from, write_to)
        _guarded(program.serve, report, -1)
    parts = job["parts"] if code == SUCCESS else []
    for index, part in enumerate(parts):
        call = partial(_report_call, report, module, job["name"], part, index)
        _guarded(call, report, index)
    return _guarded(_finish, report, -1) or code


def _execute_program(job: dict[str, Any], module: types.ModuleType) -> None:
    """Run setup and program apart, since `from __future__` must come first."""
    builtins.open = _open
    for name in ("setup", "source"):
        source = job[name]
        file = f"{name}.py" if name == "setup" else "program.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for inspect.getsource
        code = compile(source, file, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def _open(file: Any, *arguments: Any, **options: Any) -> Any:
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


def _guarded(work: Callable[[], object], report: Report, index: int) -> int:
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


def _reporter(file: int) -> Report:
    def report(what: str, value: Any, index: int) -> None:
        text = f"[{json.dumps(what)}, {encode(value)}, {index}]\n"
        line = text.encode()
        while line:
            num_written = os.write(file, line)
            line = line[num_written:]

    return report


def _fresh_streams() -> None:
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
