"""Verifier of programs: the share of tests that a response's program passes, or 1 for all of them. It runs in one
sandbox (docs/sandbox.md), the judge of its test scripts in another, and what came back is judged here.

The payload holds the tests, under `tests` (an object, or that as JSON text) or directly:

- `inputs`, `outputs`: what is read and what must be printed; with `fn_name`, lists of arguments and what that function
  must return, also as a method of `Solution`. The layout of APPS, TACO, Eurus-2.
- `asserts`: a list of assertions, each a test. `script`: one test of any length; with `entry_point` it defines `check`,
  which is called with that function (HumanEval). Scripts run in a process of their own (`scripts.py`).

And how they count: `scoring` (fraction, all), `compare` (lines, exact, any_order), `float_tolerance`, `max_tests`,
`setup` (source before the program's), `program` (block: the last code block of the response; text: all of it if it has
none), `isolation` (test: a new process for each test; program: one for all calls of a function or all assertions,
faster, and one may spoil the next).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_brorl.config.rewards import SHARE_OF_TESTS
from nemo_brorl.config.schema import CodeConfig, RewardsConfig
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.tasks.sandbox import Job, Judge, Limits, Sandbox, SandboxError
from nemo_brorl.tasks.verifiers.code.blocks import extract_program
from nemo_brorl.tasks.verifiers.code.tests import CallTest, PrintTest, Rules, ScriptTest, Test, read_tests
from nemo_brorl.tasks.verifiers.deadlines import KEY, Deadlines
from nemo_brorl.tasks.verifiers.payload import Payload, check_choice

# Options of a payload, the default first.
SCORINGS = ("fraction", "all")
COMPARISONS = ("lines", "exact", "any_order")
PROGRAMS = ("block", "text")
ISOLATIONS = ("test", "program")
VARIABLE = "BRORL_CODE_SETTINGS"  # of the environment; programs do not see it


_runners: dict[int, Runner] = {}  # by process id: a sandbox serves the process that started it, and no fork of it


def configure(rewards: RewardsConfig) -> None:
    """Use these settings in this process and those that it starts from now on."""
    seconds = Deadlines.of(rewards).seconds("code", {})
    os.environ[VARIABLE] = json.dumps([asdict(rewards.code), seconds])


def close() -> None:
    """End this process's sandbox, if it has one."""
    runner = _runners.pop(os.getpid(), None)
    if runner is not None:
        runner.close()


def load() -> None:
    """Make sure that there is a sandbox, and write what holds it to the log. Raises ResourceError where there is
    none."""
    make_runner().close()


def make_runner() -> Runner:
    """A new sandbox after the settings. Raises ResourceError when programs would run without one and
    rewards.code.allow_unsandboxed does not say that they may."""
    if VARIABLE not in os.environ:
        configure(RewardsConfig())
    values, seconds = json.loads(os.environ[VARIABLE])
    settings = CodeConfig(**values)
    limits = Limits(
        seconds=settings.test_timeout_s,
        memory_mib=settings.memory_mib,
        scratch_mib=settings.scratch_mib,
        file_mib=settings.scratch_mib,
        output_kib=settings.output_kib,
        processes=settings.max_processes,
        open_files=settings.max_open_files,
    )
    try:
        sandbox = Sandbox(limits, settings.readable, settings.preload, is_bare_allowed=settings.allow_unsandboxed)
    except SandboxError as error:
        raise ResourceError(f"{error}. docs/sandbox.md says how to get one.") from error
    return Runner(sandbox, seconds)


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    yield from check_choice(payload, "scoring", SCORINGS)
    yield from check_choice(payload, "compare", COMPARISONS)
    yield from check_choice(payload, "program", PROGRAMS)
    yield from check_choice(payload, "isolation", ISOLATIONS)
    try:
        read_tests(payload)
    except ValueError as error:
        yield str(error)


def score(payload: Payload, response: str) -> float:
    """The share of the payload's tests that the response's program passes. No program scores 0."""
    tests = read_tests(payload)
    tests = tests[: payload.get("max_tests")]
    source = extract_program(response, payload.get("program") == "text", _names_of(tests))
    if source is None:
        return 0.0
    process = os.getpid()
    if process not in _runners:
        _runners[process] = make_runner()
    program = Program(source, payload.get("setup", ""))
    outcomes = run_tests(program, tests, payload, _runners[process])
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(all(outcomes))  # stops at the first that fails
    return sum(outcomes) / len(tests)


def run_tests(
    program: Program,
    tests: list[Test],
    payload: Payload,
    runner: Runner,
) -> Iterator[bool]:
    """Whether the program passes each test. Those that its time is over for fail."""
    compare = payload.get("compare", COMPARISONS[0])
    tolerance = payload.get("float_tolerance", Rules.tolerance)
    rules = Rules(compare == "exact", compare == "any_order", tolerance)
    seconds = SHARE_OF_TESTS * payload.get(KEY, runner.seconds)
    is_shared = payload.get("isolation") == "program"
    return runner.outcomes(program, tests, rules, seconds, is_shared)


def _names_of(tests: Sequence[Test]) -> list[str]:
    """What a program must define, as far as the tests say."""
    names: set[str] = set()
    for test in tests:
        if isinstance(test, CallTest):
            names.update((test.name, "Solution"))
        if isinstance(test, ScriptTest):
            names.update(test.scripts[test.number].names)
    return sorted(names)


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
