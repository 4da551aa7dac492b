"""The share of tests that a response's program passes, or 1 for all of them: run in a sandbox (docs/sandbox.md), judged
here.

The payload holds the tests, under `tests` (an object, or that as JSON text) or directly:

- `inputs`, `outputs`: what is read and what must be printed; with `fn_name`, lists of arguments and what that function
must return,
  also as a method of `Solution`. The layout of APPS, TACO, Eurus-2.
- `asserts`: a list of assertions, each a test. `script`: one test of any length; with `entry_point` it defines `check`,
which is called
  with that function (HumanEval). Assertions are judged outside the sandbox (`assertions.py`).

And how they count: `scoring` (fraction, all), `compare` (lines, exact, any_order), `float_tolerance`, `max_tests`,
`setup` (source before the program's), `program` (block: the last code block of the response; text: all of it if it has
none), `isolation` (test: a new process for each test; program: one for all calls of a function or all assertions,
faster, and one may spoil the next).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import NamedTuple

from nemo_brorl.config.reward_rules import SHARE_OF_TESTS
from nemo_brorl.config.reward_schema import CodeConfig, RewardsConfig
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.tasks.sandbox import Job, Limits, Sandbox, SandboxError
from nemo_brorl.tasks.verifiers.answer import without_thinking
from nemo_brorl.tasks.verifiers.code.tests import CallTest, PrintTest, Rules, ScriptTest, Test, read_tests
from nemo_brorl.tasks.verifiers.deadlines import KEY, Deadlines
from nemo_brorl.tasks.verifiers.payload import Payload, check_choice

SCORINGS, COMPARISONS, PROGRAMS, ISOLATIONS = (
    ("fraction", "all"),
    ("lines", "exact", "any_order"),
    ("block", "text"),
    ("test", "program"),
)
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
    os.environ[VARIABLE] = json.dumps([asdict(rewards.code), Deadlines.of(rewards).seconds("code", {})])


def close() -> None:
    """End this process's sandbox, if it has one."""
    if (runner := _runners.pop(os.getpid(), None)) is not None:
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
    for key, choices in (
        ("scoring", SCORINGS),
        ("compare", COMPARISONS),
        ("program", PROGRAMS),
        ("isolation", ISOLATIONS),
    ):
        yield from check_choice(payload, key, choices)
    try:
        read_tests(payload)
    except ValueError as error:
        yield str(error)


def score(payload: Payload, response: str) -> float:
    """The share of the payload's tests that the response's program passes. No program scores 0."""
    program = extract_program(response, may_be_bare=payload.get("program") == "text")
    if program is None:
        return 0.0
    tests = read_tests(payload)[: payload.get("max_tests")]
    runner = _runners.get(os.getpid()) or _runners.setdefault(os.getpid(), make_runner())
    outcomes = run_tests(f"{payload.get('setup', '')}\n{program}", tests, payload, runner)
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(all(outcomes))  # stops at the first that fails
    return sum(outcomes) / len(tests)


def extract_program(response: str, may_be_bare: bool = False) -> str | None:
    """The last complete code block that says it is Python, else the last that does not say what it is. Without any
    block, the whole text where that is allowed."""
    shown = without_thinking(response)
    named: dict[str, str] = {}
    lines: list[str] | None = None
    language, has_fence = "", False
    for line in shown.splitlines():
        if not line.lstrip().startswith(FENCE):
            if lines is not None:
                lines.append(line)
            continue
        has_fence = True
        if lines is None:
            language, lines = line.strip().strip("`").strip().lower().partition(" ")[0], []
        else:
            named["python" if language in PYTHON else language], lines = "\n".join(lines) + "\n", None
    if not has_fence and may_be_bare and shown.strip():
        return shown
    return named.get("python", named.get(""))


def run_tests(program: str, tests: list[Test], payload: Payload, runner: Runner) -> Iterator[bool]:
    """Whether the program passes each test. Those that its time is over for fail."""
    compare = payload.get("compare", COMPARISONS[0])
    rules = Rules(compare == "exact", compare == "any_order", payload.get("float_tolerance", Rules.tolerance))
    ends_at = time.monotonic() + SHARE_OF_TESTS * payload.get(KEY, runner.seconds)
    num_together = len(tests) if payload.get("isolation") == "program" else 1
    done = 0
    while done < len(tests):
        left = ends_at - time.monotonic()
        if left <= 0:
            yield from [False] * (len(tests) - done)
            return
        outcomes = list(_run_some(program, tests[done : done + num_together], rules, runner.sandbox, left))
        yield from outcomes
        done += len(outcomes)


def _run_some(program: str, tests: list[Test], rules: Rules, sandbox: Sandbox, left: float) -> Iterator[bool]:
    """Run tests of the first one's kind in one process. One outcome for each up to the first that did not come to its
    end."""
    first = tests[0]
    if isinstance(first, PrintTest):
        yield first.passes(sandbox.run(first.job(program), left), rules)
        return
    alike = [test for test in tests if isinstance(test, type(first))]
    if isinstance(first, CallTest):
        job = Job(
            program, "call", name=first.name, parts=[test.arguments for test in alike if isinstance(test, CallTest)]
        )
    else:
        job = Job(program, "script", parts=[test.script.source for test in alike if isinstance(test, ScriptTest)])
    reports = sandbox.run(job, left).reports
    for index, test in enumerate(alike):
        mine = _reports_of(reports, index)
        yield not isinstance(test, PrintTest) and test.passes(mine, rules)
        if not mine or mine[-1][0] == "check":
            return  # it took the process with it: what comes after has not run


def _reports_of(reports: list[list[object]], index: int) -> list[list[object]]:
    """Those of one part: after the end of the part before it, up to its own end."""
    ends = [position for position, (what, _, _) in enumerate(reports) if what != "check"]
    start = ends[index - 1] + 1 if 0 < index <= len(ends) else 0
    return [] if index > len(ends) else reports[start : ends[index] + 1 if index < len(ends) else None]
