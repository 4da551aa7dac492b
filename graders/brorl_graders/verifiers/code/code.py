"""Verifier of programs: the share of tests that a response's program passes, or 1 only if it passes all.

The program is the response's last complete code block marked as Python, else the last unmarked block. If some of these
blocks define a name that the tests call, the last such block is the program. A response without such a block may have
its program between `[PYTHON]` or `<code>` tags, or in a block without an end. A response without a program scores 0.

Names that contest sites import unasked, such as `List` and `heapq`, are imported for a program that reads them and does
not import them. The reason of the score names them.

The program runs in one sandbox, and test scripts run in another (docs/reference/sandbox.md). The verifier compares
results outside the sandboxes.

`inputs`, `outputs` and `fn_name` are the layout of APPS, TACO and Eurus-2. `script` with `entry_point` is HumanEval's.

A test script may have assertions, comparing helpers (EvalPlus), loops, `unittest`, pytest's functions and classes, an
interactive session (`>>> f(2)`), `from solution import f`, and `if __name__ == "__main__"`. A script must reach an
assertion. Loading data refuses three kinds of test scripts:

- scripts without assertions, or with assertions only in functions that are never called
- scripts that use nothing of the program
- scripts that execute a program's results (`eval`, `exec`, `pickle`) or inspect the program (`inspect`, `globals`)
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from brorl_graders.base.answer import without_thinking
from brorl_graders.base.errors import ResourceError
from brorl_graders.base.foreign import SMALL, read_json
from brorl_graders.base.payload import TIMEOUT_KEY, Key, Payload, Scored, check_choices
from brorl_graders.base.settings import SHARE_OF_TESTS, CodeLimits
from brorl_graders.sandbox import Judge, Sandbox, SandboxError, SandboxLimits, SandboxProgram
from brorl_graders.verifiers.code.scripts import usual_imports
from brorl_graders.verifiers.code.tests import (
    TEST_KEYS,
    CallTest,
    ComparisonRules,
    PrintTest,
    ScriptTest,
    Test,
    read_tests,
)

PYTHON = ("python", "python3", "py", "py3")  # labels of Python code blocks
# A line that opens or closes a block: indentation, marks of quotes and lists, the fence, and the text after it.
_FENCE = re.compile(r"(?P<prefix>(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_LANGUAGE = re.compile(r"\{?\s*\.?([\w+#-]*)")  # labels such as python, python:a.py, {.python}
_QUOTE = re.compile(r"[ \t]*>[ ]?")
# The text after the last tag that opens a program, up to the tag that closes it.
_TAGGED = re.compile(r"(?s).*(?:\[PYTHON\]|<code>)(.*?)(?:\[/PYTHON\]|</code>|$)")
MAX_INDENT = 4  # columns; a fence that is indented so much more than the opening one belongs to the program
INVISIBLE = "\ufeff\u200b"  # byte order mark, zero-width space

# Options of a payload, the default first.
SCORINGS = ("fraction", "all")
COMPARISONS = ("lines", "exact", "any_order")
PROGRAMS = ("block", "text")
ISOLATIONS = ("test", "program")
KEYS = (
    *TEST_KEYS,
    Key(
        "scoring",
        "`fraction`: share of passed tests, as in ProRL and BroRL; `all`: 1 if all tests pass, else 0, stopping at the "
        "first failure",
        SCORINGS,
    ),
    Key(
        "compare",
        "`lines`: line by line, blanks ignored; `exact`: identical text; `any_order`: lines or list items in any order",
        COMPARISONS,
    ),
    Key(
        "float_tolerance",
        "relative (if printed, also absolute) tolerance, if the expected number has a decimal point; 0: none",
        (),
        "1e-6",
    ),
    Key("max_tests", "number of first tests that run; without this key all tests run"),
    Key("setup", "source that runs before program and script (HumanEval's `prompt`)"),
    Key("program", "`block`: the response's last code block; `text`: the whole response if it has no block", PROGRAMS),
    Key(
        "isolation",
        "`test`: a new process for each test; `program`: one process for all calls or assertions, faster, but tests "
        "share state",
        ISOLATIONS,
    ),
)
VARIABLE = "BRORL_CODE_SETTINGS"  # environment variable that programs do not see
DEFAULT_S = 20.0  # seconds for all tests of a response

_runners: dict[int, Runner] = {}  # process id -> its sandbox, which serves no fork of that process


class _Opening(NamedTuple):
    """The line that opens a code block."""

    fence: str
    indent: int  # columns in front of the fence
    num_quotes: int  # marks of quotes in front of it
    language: str  # label of the block, "" for none


def extract_program(response: str, may_be_bare: bool = False, names: Sequence[str] = ()) -> str | None:
    """Return the program in a response: the last complete code block labelled as Python, else the last without a label.

    Blocks that define one of `names` are preferred. Without such a block the program is the text between tags, else
    that of a last block without an end. None: there is no program. If `may_be_bare` is true, the whole text of a
    response without code fences is the program.
    """
    shown = without_thinking(response).lstrip(INVISIBLE)
    if may_be_bare and not any(_FENCE.match(line) for line in shown.split("\n")):
        return shown
    blocks = _blocks(shown)
    for language in (PYTHON[0], ""):
        programs = [source for label, source in blocks if label == language]
        if programs:
            return _last_that_defines(names, programs)
    tagged = _TAGGED.match(shown)
    if tagged is not None and not blocks:
        return _source(tagged[1].split("\n"), 0)
    for language, source in _blocks(f"{shown}\n{_last_fence(shown)}"):
        if (language, source) not in blocks and language in (PYTHON[0], ""):
            return source
    return None


def _last_fence(text: str) -> str:
    """Return the last line of a text that opens a block, cut to its fence, or ""."""
    matches = [_FENCE.match(line.rstrip()) for line in text.split("\n")]
    fences = [match["prefix"] + match["fence"] for match in matches if match is not None]
    return fences[-1] if fences else ""


def _last_that_defines(names: Sequence[str], programs: list[str]) -> str:
    for program in reversed(programs):
        if any(re.search(rf"\b(?:def|class)\s+{name}\b", program) for name in names):
            return program
    return programs[-1]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and the source of each complete code block of a text.

    Only "\\n" ends a line, since other line ends may be part of a string.
    """
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
            is_next = fence.language == PYTHON[0]  # True: this block has no end, and another one begins
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
    """Return the programming language that a Markdown code fence names, "" for none.

    All names of Python are returned as one and the same name.
    """
    label = info.strip().lower()
    match = _LANGUAGE.match(label)
    language = match[1] if match else ""
    is_python = language in PYTHON or label.endswith(".py")
    return PYTHON[0] if is_python else language


def _source(lines: list[str], num_quotes: int) -> str:
    """Return the source in a code block's lines, without Markdown's marks of quotes and without common indentation."""
    for _ in range(num_quotes):
        lines = [_QUOTE.sub("", line, count=1) for line in lines]
    source = "\n".join([*lines, ""]).lstrip(INVISIBLE)
    first = source.lstrip("\r\n")
    return textwrap.dedent(source) if first[:1].isspace() else source


def configure(limits: CodeLimits, seconds: float) -> None:
    """Set the sandbox limits of programs, and the seconds that all tests of a response may take together.

    The limits hold in this process and in those that it starts from now on.
    """
    os.environ[VARIABLE] = json.dumps([asdict(limits), seconds])


def close() -> None:
    """Close this process's sandbox for programs, if it has one."""
    runner = _runners.pop(os.getpid(), None)
    if runner is not None:
        runner.close()


def load() -> None:
    """Check that programs can run in a sandbox on this machine, and log what isolates them.

    Raises ResourceError if they cannot.
    """
    make_runner().close()


def make_runner() -> Runner:
    """Start a sandbox for programs, with the limits that `configure` set.

    Raises ResourceError if there can be no sandbox and rewards.code.allow_unsandboxed is false.
    """
    if VARIABLE not in os.environ:
        configure(CodeLimits(), DEFAULT_S)
    values, seconds = read_json(os.environ[VARIABLE], most_bytes=SMALL)
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
        raise ResourceError(f"{error}. docs/reference/sandbox.md says how to get one.") from error
    return Runner(sandbox, seconds)


def check(payload: Payload) -> Iterator[str]:
    """Yield what is wrong with the tests and options in the payload of a programming task."""
    yield from check_choices(payload, KEYS)
    try:
        read_tests(payload)
    except ValueError as error:
        yield str(error)


def score(payload: Payload, response: str) -> Scored:
    """Return the share of a programming task's tests that the program in a response passes.

    With `scoring: all` it is 1.0 if all pass, else 0.0. A response without a program scores 0. A reason names the usual
    imports that the program needed.
    """
    tests = read_tests(payload)
    tests = tests[: payload.get("max_tests")]
    source = extract_program(response, payload.get("program") == "text", _names_of(tests))
    if source is None:
        return 0.0
    process = os.getpid()
    if process not in _runners:
        _runners[process] = make_runner()
    setup = payload.get("setup", "")
    imports = usual_imports(source, setup)
    program = Program(source, "\n".join([*imports.values(), setup]))
    outcomes = run_tests(program, tests, payload, _runners[process])
    # With `all` no test runs after the first failure
    needs_all = payload.get("scoring", SCORINGS[0]) == "all"
    reward = float(all(outcomes)) if needs_all else sum(outcomes) / len(tests)
    if imports:
        return reward, f"imported for the program: {', '.join(imports)}"
    return reward


def run_tests(
    program: Program,
    tests: list[Test],
    payload: Payload,
    runner: Runner,
) -> Iterator[bool]:
    """Yield for each test of a programming task whether a program passes it, with the options of the task's payload.

    Tests that the deadline leaves no time for fail.
    """
    compare = payload.get("compare", COMPARISONS[0])
    tolerance = payload.get("float_tolerance", ComparisonRules.tolerance)
    rules = ComparisonRules(compare == "exact", compare == "any_order", tolerance)
    seconds = SHARE_OF_TESTS * payload.get(TIMEOUT_KEY, runner.seconds)
    is_shared = payload.get("isolation") == "program"
    return runner.outcomes(program, tests, rules, seconds, is_shared)


def _names_of(tests: Sequence[Test]) -> list[str]:
    """Return the names that a program must define, as far as the tests of its programming task show."""
    names: set[str] = set()
    for test in tests:
        if isinstance(test, CallTest):
            names.update((test.name, "Solution"))
        if isinstance(test, ScriptTest):
            names.update(test.scripts[test.number].names)
    return sorted(names)


@dataclass(frozen=True)
class Program:
    """Source of the program in a response."""

    source: str
    setup: str = ""  # source that runs before the program and before test scripts


@dataclass
class Runner:
    """A sandbox for programs, a judge of their test scripts, and the deadline for one response."""

    sandbox: Sandbox
    seconds: float  # deadline for one response whose payload has none
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.sandbox)

    def close(self) -> None:
        """Close the sandbox of programs, and the judge that runs test scripts in it."""
        self.judge.close()
        self.sandbox.close()

    def outcomes(
        self,
        program: Program,
        tests: list[Test],
        rules: ComparisonRules,
        seconds: float,
        is_shared: bool = False,
    ) -> Iterator[bool]:
        """Yield for each test whether a program passes it, within `seconds` for all tests together.

        Tests that the deadline leaves no time for fail. `is_shared`: tests of the same kind share one process.
        """
        clock = self.sandbox.clock
        ends_at = clock.seconds() + seconds
        num_together = len(tests) if is_shared else 1
        num_done = 0
        while num_done < len(tests):
            seconds_left = ends_at - clock.seconds()
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
        rules: ComparisonRules,
        seconds: float,
    ) -> list[bool]:
        """Run those of a program's tests that are of the same kind as the first one, in one sandbox process.

        Of tests of printed output only the first runs. Returns whether each test passes, up to the first test that did
        not finish.
        """
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


def _outcomes(tests: Sequence[CallTest | ScriptTest], reports: list[list[Any]], rules: ComparisonRules) -> list[bool]:
    """Return for each test of a program whether the sandbox's report says that it passed.

    The result ends at the first test without a report, which counts as failed. This test may have ended the process, so
    that later tests have not run.
    """
    outcomes: list[bool] = []
    for test, report in zip(tests, [*reports, None], strict=False):
        passes = report is not None and test.passes(report, rules)
        outcomes.append(passes)
    return outcomes
