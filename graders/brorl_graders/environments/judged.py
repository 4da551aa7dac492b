"""Environments around questions that a verifier scores: retry after a wrong answer, or use a tool first.

A task is a question of any source: `text` or `messages`, and `verifier` with its `payload`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from fractions import Fraction
from typing import Any

from brorl_graders import sandbox
from brorl_graders.base.errors import ConfigError
from brorl_graders.base.payload import SUCCESS_REWARD, full_mark, lowest_right
from brorl_graders.environments.protocol import (
    ANY,
    SAME_TASK,
    Action,
    Environment,
    Observation,
    Step,
    Task,
    ToolCall,
    Traits,
)
from brorl_graders.verifiers import registry
from brorl_graders.verifiers.arithmetic import exact_value
from brorl_graders.verifiers.safe_answer import is_arithmetic

MAX_DIGITS = 400  # digits of a result, at most

# Repeats earlier calls without their output, then runs the newest. The value of a last expression is printed, as a
# console does.
SESSION = """
import ast, contextlib, io, json, random, sys, traceback
given = json.load(sys.stdin)
names = {"__name__": "__main__"}
random.seed(given["seed"])

def run(code):
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    is_value = isinstance(last, ast.Expr)
    if is_value:
        tree.body.pop()
    exec(compile(tree, "<call>", "exec"), names)
    if is_value:
        value = eval(compile(ast.Expression(last.value), "<call>", "eval"), names)
        if value is not None:
            print(repr(value))

for code in given["before"]:
    with contextlib.redirect_stdout(io.StringIO()):
        run(code)
try:
    run(given["code"])
except BaseException as error:
    print("".join(traceback.format_exception_only(error)).strip())
    sys.exit(1)
"""

_sandboxes: dict[sandbox.SandboxLimits, sandbox.Sandbox] = {}  # sandboxes of this process by their limits


class Judged(Environment):
    """Base of environments whose episodes end with an answer that the task's verifier scores."""

    question: Task
    seed = 0
    lowest_score = SUCCESS_REWARD  # lowest reward of a right answer

    @classmethod
    def traits(cls, task: Task) -> Traits:
        """Return the properties that decide which process may score the task with its verifier.

        Raises ConfigError for a verifier that asks a service.
        """
        verifier = _verifier_of(cls.__name__, task)
        payload = task["payload"]
        if registry.endpoints_in(verifier, payload):
            raise ConfigError(f"{cls.__name__} does not ask services: choose a data.verifier other than {verifier!r}")
        for template in registry.templates(verifier, payload):
            registry.prepare(template)
        is_open = cls.is_open or registry.is_open(verifier, payload)
        isolation = SAME_TASK if registry.is_foreign(verifier, payload) else ANY
        return Traits(is_open, False, isolation)

    def reset(self, task: Task, seed: int) -> Observation:
        """Store the task, and return its question as the prompt."""
        _verifier_of(type(self).__name__, task)
        self.question = task
        self.lowest_score = lowest_right(full_mark(task.get("payload", {})))
        self.seed = seed
        return task.get("messages") or str(task["text"])

    def score(self, text: str) -> float:
        """Return the reward that the question's verifier gives to an answer."""
        reward, _ = registry.judge(self.question["verifier"], self.question["payload"], text)
        return reward


class VerifyAndRetry(Judged):
    """An environment that lets the model retry after a wrong answer. The question's verifier scores the last answer."""

    def __init__(
        self,
        max_turns: int = 2,
        feedback: str = "That is wrong. Try again.",
        retry_discount: float = 1.0,
    ) -> None:
        """Check and store the settings of an environment that lets the model retry after a wrong answer.

        `feedback` is the message after a wrong answer, and may contain `{question}`. Each retry multiplies the reward
        by `retry_discount`. Raises ConfigError for `max_turns` below 1.
        """
        if max_turns < 1:
            raise ConfigError(f"verify_and_retry: max_turns={max_turns}: set 1 or more")
        self.max_turns = max_turns
        self.feedback = feedback
        self.retry_discount = retry_discount
        self.num_tries = 0

    def step(self, action: Action) -> Step:
        """Score the model's answer, and end the episode or tell the model to try again."""
        score = self.score(action.text)
        reward = score * self.retry_discount**self.num_tries
        self.num_tries += 1
        is_last = score >= self.lowest_score or self.num_tries >= self.max_turns
        if is_last:
            return Step(reward=reward, terminated=True)
        question = str(self.question["text"])
        return Step(self.feedback.replace("{question}", question))


class WithTool(Judged):
    """Base of environments in which the model may call a tool. A turn without a call is the answer."""

    def step(self, action: Action) -> Step:
        """Return the results of the tool calls in the model's turn, or score a turn without calls as the answer."""
        if not action.tool_calls:
            return Step(reward=self.score(action.text), terminated=True)
        results = []
        for call in action.tool_calls:
            result = self.call(call)
            results.append({"role": "tool", "content": result})
        return Step(results)

    @abstractmethod
    def call(self, call: ToolCall) -> str:
        """Run one tool call of the model, and return its result as a text."""


class Calculator(WithTool):
    """An environment with the tool `calculator(expression)`, which computes exactly with `+ - * / **` and brackets.

    A turn without a tool call is the answer.
    """

    tools = (
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Value of an arithmetic expression.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string"}},
                    "required": ["expression"],
                },
            },
        },
    )

    def __init__(self, max_turns: int = 4) -> None:
        self.max_turns = max_turns

    def call(self, call: ToolCall) -> str:
        """Return the value of an arithmetic expression, as a fraction where it is no integer."""
        expression = call.arguments["expression"]
        value = None
        if is_arithmetic(expression):
            value = exact_value(expression)
        if value is None:
            return "error: that is no arithmetic expression"
        return _format_number(value)


class PythonTool(WithTool):
    """An environment with the tool `python(code)`, which runs in the sandbox of `graders/brorl_graders/sandbox`.

    A turn without a tool call is the answer. Variables are kept between the calls of an episode. Each call is a new
    process that first repeats the earlier calls, so no process waits while the model generates.
    """

    is_open = True
    tools = (
        {
            "type": "function",
            "function": {
                "name": "python",
                "description": "Run Python. Returns what is printed. Names are kept between calls.",
                "parameters": {
                    "type": "object",
                    "properties": {"code": {"type": "string"}},
                    "required": ["code"],
                },
            },
        },
    )

    def __init__(self, max_turns: int = 6, seconds: float = 4.0, memory_mib: int = 512) -> None:
        """Store the settings of the Python tool.

        `seconds` and `memory_mib` limit one call, together with the earlier calls that it repeats.
        """
        self.max_turns = max_turns
        self.limits = sandbox.SandboxLimits(seconds=seconds, memory_mib=memory_mib, output_kib=64)
        self.calls: list[str] = []  # code of the calls that succeeded

    def call(self, call: ToolCall) -> str:
        """Run the Python code of a tool call and return what it prints, with an error line when it fails.

        A failed call leaves no variables for later calls.
        """
        code = call.arguments["code"]
        program = sandbox.SandboxProgram(SESSION, tests=(), stdin=_session_input(self.calls, code, self.seed))
        result = _shared_sandbox(self.limits).run(program)
        if result.ending == sandbox.FINISHED:
            self.calls.append(code)
            return result.printed or "(nothing was printed)"
        return f"{result.printed}\nerror: {result.ending}".strip()


def _shared_sandbox(limits: sandbox.SandboxLimits) -> sandbox.Sandbox:
    """Return the code sandbox with these limits that all episodes of this process share."""
    if limits not in _sandboxes:
        _sandboxes[limits] = sandbox.Sandbox(limits)
    return _sandboxes[limits]


def _session_input(before: list[str], code: str, seed: int) -> str:
    return json.dumps({"before": before, "code": code, "seed": seed})


def _format_number(value: Fraction) -> str:
    numerator, denominator = value.as_integer_ratio()
    if max(abs(numerator), denominator) >= 10**MAX_DIGITS:
        return f"error: the result has more than {MAX_DIGITS} digits"
    return str(numerator) if denominator == 1 else f"{numerator}/{denominator}"


def _verifier_of(name: str, task: Any) -> str:
    """Return the name of the task's verifier. Raises ConfigError for a task without verifier or payload."""
    if "verifier" not in task or "payload" not in task:
        raise ConfigError(
            f"{name} needs questions that a verifier scores: set data.source to a source of such questions"
        )
    return str(task["verifier"])
