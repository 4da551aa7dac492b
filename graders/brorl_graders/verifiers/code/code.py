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

Which code block of a response is its program is told in the forms in which models write one.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from brorl_graders.base.answer import without_thinking
from brorl_graders.base.errors import ResourceError
from brorl_graders.base.payload import TIMEOUT_KEY, Payload, check_choice
from brorl_graders.base.settings import SHARE_OF_TESTS, CodeLimits
from brorl_graders.sandbox import Judge, Sandbox, SandboxError, SandboxLimits, SandboxProgram
from brorl_graders.verifiers.code.tests import CallTest, PrintTest, Rules, ScriptTest, Test, read_tests

PYTHON = ("python", "python3", "py", "py3")  # languages that a code block may name
# A line that opens or closes a block: indentation, marks of quotes and lists, the fence, what stands behind it.
_FENCE = re.compile(r"(?P<prefix>(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_LANGUAGE = re.compile(r"\{?\s*\.?([\w+#-]*)")  # python, python:a.py, {.python}
_QUOTE = re.compile(r"[ \t]*>[ ]?")
MAX_INDENT = 4  # a fence that stands so much deeper than the one that opened the block belongs to the program
INVISIBLE = "\ufeff\u200b"  # byte order mark, space without width

# Options of a payload, the default first.
SCORINGS = ("fraction", "all")
COMPARISONS = ("lines", "exact", "any_order")
PROGRAMS = ("block", "text")
ISOLATIONS = ("test", "program")
VARIABLE = "BRORL_CODE_SETTINGS"  # of the environment; programs do not see it
DEFAULT_S = 20.0  # of all tests of a response

_runners: dict[int, Runner] = {}  # by process id: a sandbox serves the process that started it, and no fork of it


class _Opening(NamedTuple):
    """The line that opens a block."""

    fence: str
    indent: int  # columns in front of the fence
    num_quotes: int  # marks of quotes in front of it
    language: str  # "" where it names none


def extract_program(response: str, may_be_bare: bool = False, names: Sequence[str] = ()) -> str | None:
    """The last complete code block that says it is Python, else the last that does not say what it is: of those that
    define one of `names`, where some do. Without any block, the whole text where that is allowed."""
    shown = without_thinking(response).lstrip(INVISIBLE)
    if may_be_bare and not any(_FENCE.match(line) for line in shown.split("\n")):
        return shown
    blocks = _blocks(shown)
    for language in (PYTHON[0], ""):
        programs = [source for label, source in blocks if label == language]
        if programs:
            return _last_that_defines(names, programs)
    return None


def _last_that_defines(names: Sequence[str], programs: list[str]) -> str:
    for program in reversed(programs):
        if any(re.search(rf"\b(?:def|class)\s+{name}\b", program) for name in names):
            return program
    return programs[-1]


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, source) of each complete block. Lines end in "\\n" alone: other ends of line may stand in a string."""
    found: list[tuple[str, str]] = []
    lines: list[str] = []
    opening: _Opening | None = None
    for line in text.split("\n"):
        fence = _fence(line)
        if opening is None:
            opening = fence
            lines = []
        elif fence is None or not _ends(fence, opening):
            lines.append(line)
        else:
            is_next = fence.language == PYTHON[0]  # the end of a block is missing, another one begins
            if not is_next:
                found.append((opening.language, _source(lines, opening.num_quotes)))
            opening = fence if is_next else None
            lines = []
    return found


def _fence(line: str) -> _Opening | None:
    match = _FENCE.match(line.rstrip())
    if match is None:
        return None
    prefix = match["prefix"].expandtabs()
    return _Opening(match["fence"], len(prefix), prefix.count(">"), _language(match["info"]))


def _ends(fence: _Opening, opening: _Opening) -> bool:
    return fence.fence.startswith(opening.fence) and fence.indent < opening.indent + MAX_INDENT


def _language(info: str) -> str:
    """The language that stands behind a fence, "" for none; all of Python's names are one."""
    label = info.strip().lower()
    match = _LANGUAGE.match(label)
    language = match[1] if match else ""
    is_python = language in PYTHON or label.endswith(".py")
    return PYTHON[0] if is_python else language


def _source(lines: list[str], num_quotes: int) -> str:
    """The program of a block's lines, without the quote's or the list's indentation."""
    for _ in range(num_quotes):
        lines = [_QUOTE.sub("", line, count=1) for line in lines]
    source = "\n".join([*lines, ""]).lstrip(INVISIBLE)
    first = source.lstrip("\r\n")
    return textwrap.dedent(source) if first[:1].isspace() else source


def configure(limits: CodeLimits, seconds: float) -> None:
    """Let programs use so much, and all tests of a response take so many seconds, in this process and those that it
    starts from now on."""
    os.environ[VARIABLE] = json.dumps([asdict(limits), seconds])


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
        configure(CodeLimits(), DEFAULT_S)
    values, seconds = json.loads(os.environ[VARIABLE])
    settings = CodeLimits(**values)
    limits = SandboxLimits(
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
    seconds = SHARE_OF_TESTS * payload.get(TIMEOUT_KEY, runner.seconds)
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
            reading = SandboxProgram(program.source, setup=program.setup, stdin=first.stdin)
            result = self.sandbox.run(reading, seconds)
            return [first.passes(result, rules)]
        if isinstance(first, CallTest):
            calls = [test for test in tests if isinstance(test, CallTest)]
            arguments = [test.arguments for test in calls]
            called = SandboxProgram(program.source, "call", program.setup, name=first.name, tests=arguments)
            result = self.sandbox.run(called, seconds)
            return _outcomes(calls, result.reports, rules)
        scripts = [test for test in tests if isinstance(test, ScriptTest)]
        numbers = [test.number for test in scripts]
        reports = self.judge.judge_program(program.source, first.all_scripts(program.setup), numbers, seconds)
        return _outcomes(scripts, reports, rules)


def _outcomes(tests: Sequence[CallTest | ScriptTest], reports: list[list[Any]], rules: Rules) -> list[bool]:
    """Whether each test passes by its report. The last may have taken the process with it: what comes after has not
    run."""
    outcomes: list[bool] = []
    for test, report in zip(tests, [*reports, None], strict=False):
        passes = report is not None and test.passes(report, rules)
        outcomes.append(passes)
    return outcomes
