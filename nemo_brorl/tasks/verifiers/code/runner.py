"""Runs of a program's tests: the program in one sandbox, the judge of its test scripts in another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_brorl.tasks.sandbox import Job, Judge, Sandbox
from nemo_brorl.tasks.verifiers.code.tests import CallTest, PrintTest, Rules, ScriptTest, Test


@dataclass(frozen=True)
class Program:
    """A response's program."""

    source: str
    setup: str = ""  # source that runs before it, and before test scripts


@dataclass
class Runner:
    """A sandbox for programs, a judge of their test scripts, and the deadline for one response."""

    sandbox: Sandbox
    seconds: float  # that one response may take where its payload says nothing
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.sandbox)

    def close(self) -> None:
        """End both."""
        self.judge.close()
        self.sandbox.close()

    def outcomes(
        self,
        program: Program,
        tests: list[Test],
        rules: Rules,
        seconds: float,
        is_shared: bool = False,
    ) -> Iterator[bool]:
        """Whether a program passes each test, all within `seconds`: those that the time is over for fail. `is_shared`:
        tests of a kind in one process."""
        ends_at = time.monotonic() + seconds
        num_together = len(tests) if is_shared else 1
        num_done = 0
        while num_done < len(tests):
            seconds_left = ends_at - time.monotonic()
            if seconds_left <= 0:
                yield from [False] * (len(tests) - num_done)
                return
            next_tests = tests[num_done : num_done + num_together]
            outcomes = self._run_together(program, next_tests, rules, seconds_left)
            yield from outcomes
            num_done += len(outcomes)

    def _run_together(
        self,
        program: Program,
        tests: list[Test],
        rules: Rules,
        seconds: float,
    ) -> list[bool]:
        """Run tests of the first one's kind in one process. One outcome for each up to the first that did not come to
        its end."""
        first = tests[0]
        if isinstance(first, PrintTest):
            job = Job(program.source, setup=program.setup, stdin=first.stdin)
            run = self.sandbox.run(job, seconds)
            return [first.passes(run, rules)]
        if isinstance(first, CallTest):
            calls = [test for test in tests if isinstance(test, CallTest)]
            arguments = [test.arguments for test in calls]
            job = Job(program.source, "call", program.setup, name=first.name, parts=arguments)
            run = self.sandbox.run(job, seconds)
            return _outcomes(calls, run.reports, rules)
        scripts = [test for test in tests if isinstance(test, ScriptTest)]
        numbers = [test.number for test in scripts]
        reports = self.judge.reports(program.source, first.all_scripts(program.setup), numbers, seconds)
        return _outcomes(scripts, reports, rules)


def _outcomes(tests: Sequence[CallTest | ScriptTest], reports: list[list[Any]], rules: Rules) -> list[bool]:
    """Whether each test passes by its report. The last may have taken the process with it: what comes after has not
    run."""
    outcomes: list[bool] = []
    for test, report in zip(tests, [*reports, None], strict=False):
        passes = report is not None and test.passes(report, rules)
        outcomes.append(passes)
    return outcomes
