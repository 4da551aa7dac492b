"""The owner's side of a judge (`judge.py`), which runs test scripts in one sandbox against programs in another.

A judge knows one test. It serves one program after another over pipes that were made with it, two for each program. It
is replaced for another test, when its pipes are used up, and when it fails to finish.
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
JUDGE_MODULES = ("doctest", "unittest", "brorl_graders.sandbox.judge")  # modules that every judge imports
LAST_REPORT = b'["end", null, -1]\n'


@dataclass(frozen=True)
class ScriptedTest:
    """A test that judges programs by scripts, which run in the judge's process."""

    scripts: Sequence[dict[str, Any]]  # scripts in the format of `judge.py`
    setup: str = ""  # source that runs before the program and before each script
    modules: frozenset[str] = frozenset()  # modules that the scripts import


@dataclass
class _Process:
    """A running judge process with its pipes."""

    test: ScriptedTest
    printed: OutputPipe
    reported: OutputPipe
    orders_to: int  # file descriptor that orders are written to
    channels: list[tuple[int, int]] = field(default_factory=list)  # pipe ends for coming programs, the last first


class Judge:
    """A judge of programs by test scripts. Its sandbox is started when there is something to judge."""

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
        """Run a program against the test scripts of these indices, and return the judge's reports, one for each script.

        Each script may take the time limit, and all scripts together `seconds`. There are fewer reports when the
        program or the judge ended early.
        """
        try:
            process = self._process_for(test, seconds)
        except OSError:  # the sandbox for judges was lost and has been replaced
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
            except OSError:  # the sandbox for programs was lost and has been replaced
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
        """End the judge process and the sandbox in which it runs."""
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
        except OSError:  # the judge has exited
            ending = TOO_MUCH_OUTPUT
        reports = parse_reports(bytes(process.reported.text))
        if ending is None and reports and reports[-1][0] == "end":
            return reports[:-1]
        self._end_process()
        return reports

    def _process_for(self, test: ScriptedTest, seconds: float) -> _Process:
        """Return a judge process for this test that can serve one more program.

        Raises OSError when the sandbox in which judges run is lost.
        """
        sandbox = self._sandbox_for(test)
        if self._process is None:
            self._process = _start_judge(
                sandbox,
                test,
                seconds,
            )
        return self._process

    def _sandbox_for(self, test: ScriptedTest) -> Sandbox:
        """Return the sandbox in which judges run, with the modules imported that the test's scripts need.

        A module that cannot be imported is left out. A new sandbox, when one is needed, also imports the modules of the
        old one.
        """
        process = self._process
        if process is not None and (process.test != test or not process.channels):
            self._end_process()
        modules = set(test.modules)
        if self._sandbox is not None:
            if modules <= set(self._sandbox.optional):
                return self._sandbox
            modules.update(self._sandbox.optional)
            self.close()
        self._sandbox = self._programs.with_modules(JUDGE_MODULES, sorted(modules))
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
