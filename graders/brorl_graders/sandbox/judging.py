"""Owner's side of a judge (`judge.py`): test scripts in a sandbox of their own, of programs in another.

A judge knows one test, and serves one program after another over pipes that were made with it, two for each program. It
is replaced when another test comes, when its pipes are used up, and when it has not come to its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from brorl_graders.sandbox.limits import TOO_MUCH_OUTPUT, OutputPipe
from brorl_graders.sandbox.sandbox import Sandbox, SandboxProgram, parse_reports

MAX_PROGRAMS_PER_JUDGE = 16
JUDGE_MODULES = ("doctest", "unittest", "brorl_graders.sandbox.judge")  # that every judge has
LAST_REPORT = b'["end", null, -1]\n'


@dataclass(frozen=True)
class ScriptedTest:
    """What a judge judges by."""

    scripts: Sequence[dict[str, Any]]  # as `judge.py` has them
    setup: str = ""  # source that runs before the program and before each script
    modules: frozenset[str] = frozenset()  # that they import


@dataclass
class _Process:
    """A judge at work."""

    test: ScriptedTest
    printed: OutputPipe
    reported: OutputPipe
    orders_to: int  # file descriptor that orders are written to
    channels: list[tuple[int, int]] = field(default_factory=list)  # ends for programs to come, the last first


class Judge:
    """A sandbox for judges, which is started when there is something to judge."""

    def __init__(self, programs: Sandbox) -> None:
        self._programs = programs
        self._sandbox: Sandbox | None = None
        self._process: _Process | None = None

    def judge_program(
        self,
        source: str,
        test: ScriptedTest,
        indices: Sequence[int],
        seconds: float,
    ) -> list[list[Any]]:
        """What the judge reports of a program and these scripts, each within the limits and all within `seconds`: less
        than one for each where the program or the time did not last."""
        try:
            process = self._process_for(test, seconds)
        except OSError:  # the sandbox for judges is lost, and replaced
            return []
        number = len(process.channels) - 1
        ends = process.channels.pop()
        with open(os.devnull, "wb") as nowhere:
            served = SandboxProgram(
                source,
                "serve",
                test.setup,
            )
            outputs = [nowhere.fileno(), nowhere.fileno()]
            try:
                self._programs.start(
                    served,
                    seconds,
                    [*outputs, *ends],
                )
            except OSError:  # the one for programs, likewise
                return []
            finally:
                _close(ends)
        try:
            return self._run_judge(
                process,
                [number, indices],
                seconds,
            )
        finally:
            self._programs.stop()

    def close(self) -> None:
        """End it."""
        self._end_process()
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = None

    def _run_judge(
        self,
        process: _Process,
        order: list[Any],
        seconds: float,
    ) -> list[list[Any]]:
        assert self._sandbox is not None
        process.printed.text.clear()
        process.reported.text.clear()
        ending: str | None = TOO_MUCH_OUTPUT
        try:
            os.write(process.orders_to, json.dumps(order).encode() + b"\n")
            num_periods = 1 + len(order[1])
            ending = self._sandbox.follow(
                process.printed,
                process.reported,
                seconds,
                num_periods,
                LAST_REPORT,
            )
        except OSError:  # the judge is gone
            ending = TOO_MUCH_OUTPUT
        reports = parse_reports(bytes(process.reported.text))
        if ending is None and reports and reports[-1][0] == "end":
            return reports[:-1]
        self._end_process()
        return reports

    def _process_for(self, test: ScriptedTest, seconds: float) -> _Process:
        """A judge of this test that has pipes left. Raises OSError."""
        sandbox = self._sandbox_for(test)
        if self._process is None:
            self._process = _start_judge(
                sandbox,
                test,
                seconds,
            )
        return self._process

    def _sandbox_for(self, test: ScriptedTest) -> Sandbox:
        """The sandbox for judges, which has imported the test's modules as far as they can be: another one if need be,
        which has all the old ones, too."""
        process = self._process
        if process is not None and (process.test != test or not process.channels):
            self._end_process()
        wanted = set(test.modules)
        if self._sandbox is not None:
            if wanted <= set(self._sandbox.wanted):
                return self._sandbox
            wanted.update(self._sandbox.wanted)
            self.close()
        self._sandbox = self._programs.with_modules(JUDGE_MODULES, sorted(wanted))
        return self._sandbox

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None or self._sandbox is None:
            return
        os.close(process.orders_to)
        for ends in process.channels:
            _close(ends)
        process.printed.close()
        process.reported.close()
        self._sandbox.stop()


def _start_judge(
    sandbox: Sandbox,
    test: ScriptedTest,
    seconds: float,
) -> _Process:
    """Start a judge."""
    orders_from, orders_to = os.pipe()
    process = _Process(
        test,
        sandbox.pipe(),
        sandbox.pipe(),
        orders_to,
    )
    judges_ends: list[int] = []
    for _ in range(MAX_PROGRAMS_PER_JUDGE):
        calls_from, calls_to = os.pipe()
        answers_from, answers_to = os.pipe()
        judges_ends += [answers_from, calls_to]
        process.channels.append((calls_from, answers_to))
    outputs = [process.printed.their_file, process.reported.their_file]
    program = SandboxProgram(
        "",
        "judge",
        test.setup,
        tests=test.scripts,
    )
    try:
        sandbox.start(
            program,
            MAX_PROGRAMS_PER_JUDGE * seconds,
            [
                *outputs,
                *judges_ends,
                orders_from,
            ],
        )
    finally:
        _close([*judges_ends, orders_from])
        process.printed.close_their_end()
        process.reported.close_their_end()
    return process


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
