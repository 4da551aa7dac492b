"""Verifier of programs: the share of tests that a response's program passes, or 1 for all of them. It runs in a sandbox
(docs/sandbox.md), and is judged here.

The payload holds the tests, under `tests` (an object, or that as JSON text) or directly:

- `inputs`, `outputs`: what is read and what must be printed; with `fn_name`, lists of arguments and what that function
  must return, also as a method of `Solution`. The layout of APPS, TACO, Eurus-2.
- `asserts`: a list of assertions, each a test. `script`: one test of any length; with `entry_point` it defines `check`,
  which is called with that function (HumanEval). Assertions are judged outside the sandbox (`assertions.py`).

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
from dataclasses import asdict
from typing import Any, NamedTuple

from nemo_brorl.config.schema import CodeConfig, RewardsConfig
from nemo_brorl.config.sections.rewards import SHARE_OF_TESTS
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.tasks.sandbox import Job, Limits, Run, Sandbox, SandboxError
from nemo_brorl.tasks.verifiers.answer import without_thinking
from nemo_brorl.tasks.verifiers.code.tests import CallTest, PrintTest, Rules, ScriptTest, Test, read_tests
from nemo_brorl.tasks.verifiers.deadlines import KEY, Deadlines
from nemo_brorl.tasks.verifiers.payload import Payload, check_choice

# Options of a payload, the default first.
SCORINGS = ("fraction", "all")
COMPARISONS = ("lines", "exact", "any_order")
PROGRAMS = ("block", "text")
ISOLATIONS = ("test", "program")
PYTHON = ("python", "python3", "py")  # languages that a code block may name
FENCE = "```"
VARIABLE = "BRORL_CODE_SETTINGS"  # of the environment; programs do not see it


class Runner(NamedTuple):
    """A sandbox, and the deadline for one response."""

    sandbox: Sandbox
    seconds: float  # that one response may take where its payload says nothing


_runners: dict[int, Runner] = {}  # by process id: a sandbox serves the process that started it, and no fork of it


def configure(rewards: RewardsConfig) -> None:
    """Use these settings in this process and those that it starts from now on."""
    seconds = Deadlines.of(rewards).seconds("code", {})
    os.environ[VARIABLE] = json.dumps([asdict(rewards.code), seconds])


def close() -> None:
    """End this process's sandbox, if it has one."""
    runner = _runners.pop(os.getpid(), None)
    if runner is not None:
        runner.sandbox.close()


def load() -> None:
    """Make sure that there is a sandbox, and write what holds it to the log. Raises ResourceError where there is
    none."""
    make_runner().sandbox.close()


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
    program = extract_program(response, may_be_bare=payload.get("program") == "text")
    if program is None:
        return 0.0
    tests = read_tests(payload)
    tests = tests[: payload.get("max_tests")]
    process = os.getpid()
    if process not in _runners:
        _runners[process] = make_runner()
    setup = payload.get("setup", "")
    outcomes = run_tests(f"{setup}\n{program}", tests, payload, _runners[process])
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(all(outcomes))  # stops at the first that fails
    return sum(outcomes) / len(tests)


def extract_program(response: str, may_be_bare: bool = False) -> str | None:
    """The last complete code block that says it is Python, else the last that does not say what it is. Without any
    block, the whole text where that is allowed."""
    shown = without_thinking(response)
    has_fence = False
    blocks: dict[str, str] = {}  # the last of each language
    lines: list[str] = []
    language: str | None = None  # of the block that is open
    for line in shown.splitlines():
        if not line.lstrip().startswith(FENCE):
            lines.append(line)
            continue
        has_fence = True
        if language is None:
            language = _language(line)
        else:
            lines.append("")
            blocks[language] = "\n".join(lines)
            language = None
        lines = []
    if not has_fence and may_be_bare and shown.strip():
        return shown
    unnamed = blocks.get("")
    return blocks.get(PYTHON[0], unnamed)


def _language(fence: str) -> str:
    """The language that an opening fence names, "" for none; all of Python's names are one."""
    label = fence.strip().strip("`").strip()
    language, _, _ = label.lower().partition(" ")
    return PYTHON[0] if language in PYTHON else language


def run_tests(
    program: str,
    tests: list[Test],
    payload: Payload,
    runner: Runner,
) -> Iterator[bool]:
    """Whether the program passes each test. Those that its time is over for fail."""
    compare = payload.get("compare", COMPARISONS[0])
    tolerance = payload.get("float_tolerance", Rules.tolerance)
    rules = Rules(compare == "exact", compare == "any_order", tolerance)
    seconds = payload.get(KEY, runner.seconds)
    ends_at = time.monotonic() + SHARE_OF_TESTS * seconds
    is_shared = payload.get("isolation") == "program"
    num_together = len(tests) if is_shared else 1
    num_done = 0
    while num_done < len(tests):
        seconds_left = ends_at - time.monotonic()
        if seconds_left <= 0:
            yield from [False] * (len(tests) - num_done)
            return
        next_tests = tests[num_done : num_done + num_together]
        outcomes = _run_together(program, next_tests, rules, runner.sandbox, seconds_left)
        yield from outcomes
        num_done += len(outcomes)


def _run_together(
    program: str,
    tests: list[Test],
    rules: Rules,
    sandbox: Sandbox,
    seconds: float,
) -> list[bool]:
    """Run tests of the first one's kind in one process. One outcome for each up to the first that did not come to its
    end."""
    first = tests[0]
    if isinstance(first, PrintTest):
        run = sandbox.run(first.job(program), seconds)
        return [first.passes(run, rules)]
    if isinstance(first, CallTest):
        calls = [test for test in tests if isinstance(test, CallTest)]
        arguments = [test.arguments for test in calls]
        job = Job(program, "call", name=first.name, parts=arguments)
        run = sandbox.run(job, seconds)
        return _outcomes(calls, run, rules)
    scripts = [test for test in tests if isinstance(test, ScriptTest)]
    sources = [test.script.source for test in scripts]
    job = Job(program, "script", parts=sources)
    run = sandbox.run(job, seconds)
    return _outcomes(scripts, run, rules)


def _outcomes(tests: Sequence[CallTest | ScriptTest], run: Run, rules: Rules) -> list[bool]:
    """Whether each test passes by the reports of its part of a run. The last may have taken the process with it: what
    comes after has not run."""
    parts: list[list[list[Any]]] = [[]]  # reports of each, up to the one that ends it
    for report in run.reports:
        parts[-1].append(report)
        if report[0] != "check":
            parts.append([])
    outcomes: list[bool] = []
    for test, reports in zip(tests, parts, strict=False):
        passes = test.passes(reports, rules)
        outcomes.append(passes)
    return outcomes
