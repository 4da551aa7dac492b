"""Generate the demonstrations of the warm-up: answers to generated questions, some with a pupil's errors.

A base model has seen answers written in more than one way. So a share of the demonstrations puts the answer into tags,
where the verifier looks for it, and the rest writes it bare. Reinforcement learning then teaches, among other things,
to follow the format.

Arithmetic is written as by a pupil with habits of error. Sums of several terms are worked out step by step, and some
numbers are guessed or requested from a calculator. `17 + 25 - 8` becomes `17+25=42-8=34`, as people note it down. A
slip is carried on: the next step starts from the wrong number. Each habit is drawn independently. So a sum of few steps
without carries is usually right, one with many carries hardly ever, and the questions of one task spread over decades
of success rates.

The pupil uses the calculator carelessly. A base has to have seen that much of a tool before reinforcement learning can
make a habit of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from brorl_graders.base.payload import ENVIRONMENT, Payload
from brorl_graders.environments.protocol import Action, Environment, Message, ToolCall, to_messages
from brorl_graders.environments.registry import make_environment
from brorl_graders.environments.tool_calls import ToolCallError, parse_calls

from brorl_lab.bases.initial_model import ANSWER_TAGS
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer, conversation
from nemo_brorl.prompts.mixture import Mixture
from nemo_brorl.prompts.questions import Question, Source
from nemo_brorl.scoring.turn_tokens import TurnTokens
from nemo_brorl.training.supervised.examples import Example

DIGITS = "0123456789"
TOOL, NO_TOOL = "calculator", "calculate"

SUMS = "chain_sum"  # Reasoning Gym's task whose steps can be written


@dataclass(frozen=True)
class Habits:
    """The error rates of simulated handwritten arithmetic."""

    dropped_carry_rate: float  # chance that a carry, or a borrowed ten, is forgotten
    slip_rate: float  # chance that a step's result is off by one


@dataclass(frozen=True)
class WorkedSum:
    """The written steps of a sum, and the number that they end at."""

    steps: str
    result: int


def work_out(expression: str, habits: Habits, random: Random) -> WorkedSum:
    """Solve a sum such as `17 + 25 - 8` step by step from left to right, with random errors in carries and results.

    The expression has blanks between terms and signs.
    """
    first, *rest = expression.split()
    result = int(first)
    steps = first
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        change = int(term) if sign == "+" else -int(term)
        result = add_carelessly(result, change, habits, random)
        steps += f"{sign}{term}={result}"
    return WorkedSum(steps, result)


def add_carelessly(value: int, change: int, habits: Habits, random: Random) -> int:
    """Return the sum of two whole numbers, computed digit by digit, with random carry errors and slips by one."""
    large, small = sorted((value, change), key=abs, reverse=True)
    is_sum = (large < 0) == (small < 0)
    combine = _add if is_sum else _subtract
    size = combine(abs(large), abs(small), habits, random)
    result = -size if large < 0 else size
    if random.random() < habits.slip_rate:
        result += random.choice((-1, 1))
    return result


def _add(large: int, small: int, habits: Habits, random: Random) -> int:
    total = carry = 0
    place = 1
    while large >= place or carry:
        column = large // place % 10 + small // place % 10 + carry
        total += column % 10 * place
        carry = column // 10
        if carry and random.random() < habits.dropped_carry_rate:
            carry = 0
        place *= 10
    return total


def _subtract(large: int, small: int, habits: Habits, random: Random) -> int:
    difference = borrowed = 0
    place = 1
    while large >= place:
        column = large // place % 10 - small // place % 10 - borrowed
        difference += column % 10 * place
        borrowed = int(column < 0)
        if borrowed and random.random() < habits.dropped_carry_rate:
            borrowed = 0
        place *= 10
    return difference


@dataclass(frozen=True)
class Calls:
    """The rate of calculator calls in demonstrations, and of errors in them.

    `slip_rate` applies to each of three things: a digit of the expression, the tool's name, and a digit of the result
    that is read.
    """

    calling_rate: float
    slip_rate: float


def careless_call(expression: str, slip_rate: float, random: Random) -> str:
    """Return a calculator call with random errors in the expression and in the tool's name."""
    asked = expression
    name = TOOL
    if random.random() < slip_rate:
        asked = with_another_digit(expression, random)
    if random.random() < slip_rate:
        name = NO_TOOL
    return format_call(asked, name)


def read_carelessly(
    told: str,
    num_digits: int,
    slip_rate: float,
    random: Random,
) -> str:
    """Return the number that the calculator reported, sometimes with one wrong digit.

    If the calculator reported no number, a random one of `num_digits` digits is returned.
    """
    if not told.isdecimal():
        return str(random.randrange(10 ** (num_digits - 1), 10**num_digits))
    if random.random() < slip_rate:
        return with_another_digit(told, random)
    return told


def format_call(expression: str, name: str = TOOL) -> str:
    """Return a tool call as Hermes and Qwen write it."""
    call = {"name": name, "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def with_another_digit(text: str, random: Random) -> str:
    """Return the text with one of its digits replaced by another from 1 to 9, so that no number begins with 0.

    Raises IndexError when the text has no digits.
    """
    places = [place for place, letter in enumerate(text) if letter in DIGITS]
    place = random.choice(places)
    others = DIGITS[1:].replace(text[place], "")
    return text[:place] + random.choice(others) + text[place + 1 :]


CAREFUL = Habits(0.0, 0.0)


class Demonstrations:
    """Demonstrations of a source's questions. Demonstration i depends only on the source's seed and i.

    Pass a train source: then no held-out question is used. `tagged_fraction` of them are `<answer>ANSWER</answer>`, the
    others bare. With `habits` the sums of `chain_sum` are worked out step by step, with the errors of a pupil who has
    these habits. Where an environment calls an answer wrong, the pupil works it out again with care. With `calls`,
    expressions are guessed or sent to a calculator.
    """

    def __init__(
        self,
        source: Source | Mixture,
        tokenizer: ChatTokenizer,
        system_prompt: str | None,
        tagged_fraction: float,
        habits: Habits | None = None,
        calls: Calls | None = None,
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.tagged_fraction = tagged_fraction
        self.habits = habits
        self.calls = calls

    def demonstration(self, index: int) -> Example:
        """Return a demonstrated answer to question `index` of the prompt source, as prompt and response tokens.

        Raises DataError when the question has no single written answer to train on.
        """
        question = self.source.question(index)
        random = Random(f"style {index}")
        is_tagged = random.random() < self.tagged_fraction
        if question.verifier == ENVIRONMENT:
            return self._conversation(question, random, is_tagged)
        text = self._answer(question.task, question.payload, self.habits, random, is_tagged)
        prompt_ids = self.tokenizer.prompt_ids(question.text, self.system_prompt)
        response_ids = self._turn(text)
        return Example(
            task=question.task,
            prompt_ids=np.array(prompt_ids, np.int32),
            response_ids=np.array(response_ids, np.int32),
        )

    def _answer(
        self,
        task: str,
        payload: Payload,
        habits: Habits | None,
        random: Random,
        is_tagged: bool,
    ) -> str:
        if habits is None or task != SUMS:
            return response_text(task, payload, is_tagged)
        expression = payload["metadata"]["expression"]
        worked = work_out(expression, habits, random)
        return worked.steps + format_answer(worked.result, is_tagged)

    def _turn(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]

    def _conversation(
        self,
        question: Question,
        random: Random,
        is_tagged: bool,
    ) -> Example:
        """Return a demonstration of a multi-turn episode, up to the turn with which the environment ends the episode.

        The environment's messages are not trained on.
        """
        payload = question.payload
        environment = make_environment(payload["environment"], payload["settings"])
        environment.reset(payload["task"], 0)
        messages = conversation(question.messages, self.system_prompt)
        tokens = TurnTokens(self.tokenizer)
        response: list[int] = []
        has_loss: list[bool] = []
        told = ""
        while True:
            text = self._turn_text(question, told, random, is_tagged)
            turn = self._turn(text)
            response += turn
            has_loss += [True] * len(turn)
            observation = observe_turn(environment, text, tokens.tool_format)
            if observation is None:
                break
            between = tokens.after(messages, response, True, observation)
            response += between
            has_loss += [False] * len(between)
            told = observation[-1]["content"]
        prompt_ids = self.tokenizer.prompt_ids(question.messages, self.system_prompt, question.tools)
        return Example(
            task=question.task,
            prompt_ids=np.array(prompt_ids, np.int32),
            response_ids=np.array(response, np.int32),
            has_loss=np.array(has_loss, bool),
        )

    def _turn_text(
        self,
        question: Question,
        told: str,
        random: Random,
        is_tagged: bool,
    ) -> str:
        """Return the demonstrated text of a turn of an episode, given the environment's message `told` before it.

        An empty `told` means the first turn.
        """
        payload = question.payload["task"]["payload"]
        if self.calls is None:
            habits = CAREFUL if told and self.habits else self.habits
            return self._answer(question.task, payload, habits, random, is_tagged)
        slip_rate = self.calls.slip_rate
        if not told and random.random() < self.calls.calling_rate:
            return careless_call(expression_of(question), slip_rate, random)
        number = read_carelessly(told, len(payload["answer"]), slip_rate, random)
        return format_answer(number, is_tagged)

    def batch(self, step: int, size: int) -> list[Example]:
        """Return the demonstrations that one step of supervised fine-tuning trains on.

        They have the indices step · size to (step + 1) · size − 1.
        """
        first = step * size
        return [self.demonstration(index) for index in range(first, first + size)]


def observe_turn(environment: Environment, text: str, written_in: str) -> Sequence[Message] | None:
    """Return the environment's messages after a model's turn, or None when the turn has ended the episode."""
    calls: tuple[ToolCall, ...] = ()
    try:
        if environment.tools:
            calls = parse_calls(text, written_in, environment.tools)
    except ToolCallError as error:
        return to_messages(f"error: {error}", "tool")
    step: Any = environment.step(Action(text, calls))
    return None if step.terminated else to_messages(step.observation, "user")


def expression_of(question: Question) -> str:
    """Return the arithmetic expression whose value a question of a calculator environment asks for.

    Raises DataError when the question has no expression.
    """
    metadata = question.payload["task"]["payload"].get("metadata", {})
    expression = metadata.get("expression")
    if expression is None:
        raise DataError(
            f"task {question.task} has no arithmetic expression that a calculator could be asked for; leave it out of "
            "data.tasks, or set sft.demonstrations.calling_rate=null"
        )
    return str(expression)


def response_text(task: str, payload: Payload, is_tagged: bool) -> str:
    """Return the written answer to a question, in `<answer>` tags if `is_tagged`.

    Raises DataError when the task's questions have no written answers.
    """
    answer = payload.get("answer")
    if answer is None:
        raise DataError(
            f"task {task} generates questions without a written answer; leave it out of the warm-up's data.tasks"
        )
    return format_answer(answer, is_tagged)


def format_answer(answer: object, is_tagged: bool) -> str:
    """Return an answer as text, in `<answer>` tags if `is_tagged`."""
    if not is_tagged:
        return str(answer)
    opening, closing = ANSWER_TAGS
    return f"{opening}{answer}{closing}"


def tokenizer_texts(
    source: Source | Mixture,
    num_questions: int,
    system_prompt: str | None,
) -> list[str]:
    """Return a prompt source's first `num_questions` questions as whole conversations to train a tokenizer on."""
    return [_conversation(source.question(index), system_prompt) for index in range(num_questions)]


def _conversation(question: Question, system_prompt: str | None) -> str:
    lines: list[str] = []
    if system_prompt:
        lines += ["system", system_prompt]
    lines += ["user", question.text]
    payload = question.payload
    if question.verifier == ENVIRONMENT:
        payload = payload["task"].get("payload", {})
    answer = payload.get("answer", "")
    lines += ["assistant", str(answer)]
    if question.tools:
        lines += [format_call(""), "tool"]
    return "\n".join(lines)
