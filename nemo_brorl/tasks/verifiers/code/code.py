"""Verifier of programs: the share of tests that a response's program passes, or 1 for all of them. It runs in a sandbox
(docs/sandbox.md), and is judged here.

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
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from nemo_brorl.config.schema import CodeConfig, RewardsConfig
from nemo_brorl.config.sections.rewards import SHARE_OF_TESTS
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.tasks.sandbox import Limits, Sandbox, SandboxError
from nemo_brorl.tasks.verifiers.code.blocks import extract_program
from nemo_brorl.tasks.verifiers.code.runner import Program, Runner
from nemo_brorl.tasks.verifiers.code.tests import CallTest, Rules, ScriptTest, Test, read_tests
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
