"""Harness inside the program process: the program runs, then the parts of the job, and reports go out as JSON lines.

A job: `source` (the program), `stdin`, `kind`, `parts`, and for functions `name`. Kinds:

- `main`: the program is a script that reads `stdin` and prints. No parts, no reports.
- `call`: each part is a list of arguments for the function `name`, also a method of the class `Solution`. Reports
  `["value", value, index]` (`values.py`).
- `script`: each part is Python source that runs after the program in its namespace. Whenever it calls
  `CHECK(number, value, …)`, it reports `["check", [values], number]`; at its end `["done", null, index]`.

A part that raises reports `["error", text, index]`. The program shares this process and may forge all of that: a report
is the program's word and nothing more, which is why it is judged outside.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from nemo_brorl.tasks.sandbox.values import encode

CHECK = "__check__"
MAX_ERROR = 300  # characters
SUCCESS, FAILURE = 0, 1  # exit codes
Report = Callable[[str, Any, int], None]  # what, value, index


def run(job: dict[str, Any], report_to: int) -> int:
    """Run a job; the exit code."""
    _fresh_streams()
    report = _reporter(report_to)
    module = types.ModuleType("__main__" if job["kind"] == "main" else "program")
    module.__dict__["__file__"] = "program.py"
    sys.modules[module.__name__] = module
    sys.argv = ["program.py"]
    program = partial(_execute, job["source"], "program.py", module)
    code = _guarded(program, report, -1)
    if code == SUCCESS and job["kind"] == "script":

        def check(number: int, *values: Any) -> None:
            report("check", list(values), number)

        module.__dict__[CHECK] = check
    parts = job["parts"] if code == SUCCESS else []
    for index, part in enumerate(parts):
        if job["kind"] == "call":
            call = partial(_report_call, report, module, job["name"], part, index)
            _guarded(call, report, index)
            continue
        script = partial(_execute, part, "tests.py", module)
        if _guarded(script, report, index) == SUCCESS:
            report("done", None, index)
    return _guarded(_finish, report, -1) or code


def _execute(source: str, name: str, module: types.ModuleType) -> None:
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, module.__dict__)


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
