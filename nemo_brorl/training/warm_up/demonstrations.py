"""Demonstrations that the warm-up learns from, right answers to generated questions.

A base model has seen answers written in more than one way. So a share of the demonstrations puts the answer into tags,
where the verifier looks for it, and the rest writes it bare: to follow the format is part of what reinforcement
learning then teaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer, conversation
from nemo_brorl.tasks.environments.protocol import Action, Environment, Message, ToolCall, as_messages
from nemo_brorl.tasks.environments.registry import make
from nemo_brorl.tasks.environments.tool_calls import ToolCallError, parse
from nemo_brorl.tasks.environments.turn_tokens import TurnTokens
from nemo_brorl.tasks.questions.sources import Question, Source
from nemo_brorl.tasks.verifiers.payload import ENVIRONMENT, Payload
from nemo_brorl.training.supervised.examples import Example
from nemo_brorl.training.warm_up.arithmetic import Calls, Habits, careless_call, reading, work_out, written_call
from nemo_brorl.training.warm_up.initial_model import ANSWER_TAGS

SUMS = "chain_sum"  # Reasoning Gym's task whose steps can be written
CAREFUL = Habits(0.0, 0.0)


class Demonstrations:
    """Demonstration i is a function of the source's seed and i. Give it a train source: then no held-out question is
    used.

    `tagged_fraction` of them are `<answer>ANSWER</answer>`, the others bare. With `habits` the sums of `chain_sum` are
    worked out step by step, with the errors of a pupil who has these habits. Where an environment says that an answer
    is wrong, the pupil works it out again with care. With `calls`, expressions are guessed or put to a calculator.
    """

    def __init__(
        self,
        source: Source,
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
        """Raises DataError when the question has no single written answer to learn from."""
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
        return worked.steps + written(worked.result, is_tagged)

    def _turn(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]

    def _conversation(
        self,
        question: Question,
        random: Random,
        is_tagged: bool,
    ) -> Example:
        """Turns until the environment ends the episode; what it says is not learnt."""
        payload = question.payload
        environment = make(payload["environment"], payload["settings"])
        environment.reset(payload["task"], 0)
        messages = conversation(question.messages, self.system_prompt)
        tokens = TurnTokens(self.tokenizer)
        response: list[int] = []
        is_learnt: list[bool] = []
        told = ""
        while True:
            text = self._said(question, told, random, is_tagged)
            turn = self._turn(text)
            response += turn
            is_learnt += [True] * len(turn)
            observation = observed(environment, text, tokens.tool_format)
            if observation is None:
                break
            between = tokens.after(messages, response, True, observation)
            response += between
            is_learnt += [False] * len(between)
            told = observation[-1]["content"]
        prompt_ids = self.tokenizer.prompt_ids(question.messages, self.system_prompt, question.tools)
        return Example(
            task=question.task,
            prompt_ids=np.array(prompt_ids, np.int32),
            response_ids=np.array(response, np.int32),
            is_learnt=np.array(is_learnt, bool),
        )

    def _said(
        self,
        question: Question,
        told: str,
        random: Random,
        is_tagged: bool,
    ) -> str:
        """The first turn, or the one after the environment has told something."""
        payload = question.payload["task"]["payload"]
        if self.calls is None:
            habits = CAREFUL if told and self.habits else self.habits
            return self._answer(question.task, payload, habits, random, is_tagged)
        slip_rate = self.calls.slip_rate
        if not told and random.random() < self.calls.calling_rate:
            return careless_call(expression_of(question), slip_rate, random)
        number = reading(told, len(payload["answer"]), slip_rate, random)
        return written(number, is_tagged)

    def batch(self, step: int, size: int) -> list[Example]:
        """Demonstrations [step · size, (step + 1) · size)."""
        first = step * size
        return [self.demonstration(index) for index in range(first, first + size)]


def observed(environment: Environment, text: str, written_in: str) -> Sequence[Message] | None:
    """What an environment tells after a turn; None: the episode has ended."""
    calls: tuple[ToolCall, ...] = ()
    try:
        if environment.tools:
            calls = parse(text, written_in, environment.tools)
    except ToolCallError as error:
        return as_messages(f"error: {error}", "tool")
    step: Any = environment.step(Action(text, calls))
    return None if step.terminated else as_messages(step.observation, "user")


def expression_of(question: Question) -> str:
    """The arithmetic that an environment's question asks for. Raises DataError where it asks for something else."""
    metadata = question.payload["task"]["payload"].get("metadata", {})
    expression = metadata.get("expression")
    if expression is None:
        raise DataError(
            f"task {question.task} has no arithmetic expression that a calculator could be asked for; leave it out of "
            "data.tasks, or write sft.calling_rate=null"
        )
    return str(expression)


def response_text(task: str, payload: Payload, is_tagged: bool) -> str:
    """`<answer>ANSWER</answer>` or `ANSWER`. Raises DataError when the task has no written answers."""
    answer = payload.get("answer")
    if answer is None:
        raise DataError(
            f"task {task} generates questions without a written answer; leave it out of the warm-up's data.tasks"
        )
    return written(answer, is_tagged)


def written(answer: object, is_tagged: bool) -> str:
    """An answer in tags, or bare."""
    if not is_tagged:
        return str(answer)
    opening, closing = ANSWER_TAGS
    return f"{opening}{answer}{closing}"


def tokenizer_texts(
    source: Source,
    num_questions: int,
    system_prompt: str | None,
) -> list[str]:
    """Whole conversations of the first `num_questions` questions, for `build_tokenizer`."""
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
        lines += [written_call(""), "tool"]
    return "\n".join(lines)
