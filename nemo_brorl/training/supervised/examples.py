"""Examples to learn from, in the carriers of the loop: each is a group of one rollout with advantage 1. Conversations
become examples by which of their tokens are the assistant's.

The model's own chat template writes every turn, and prompt and turn are tokenised apart, as in sampling: an example
has exactly the tokens that the policy would be asked with and would have answered with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_brorl.algorithm.packing import Sharing, plan_update
from nemo_brorl.config.derived import micro_batch_tokens
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sft import SftConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.types import (
    Bool,
    ChunkArrays,
    Int32,
    Prompt,
    RolloutChunk,
    RolloutGroup,
    RolloutRequest,
    SampledMass,
    Sampling,
    ScoredGroup,
    TrainBatch,
    UpdatePlan,
)

NO_SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=1)
NO_MASS = SampledMass(0, 0, 0.0, 0.0, 0.0, 0.0)  # nothing was drawn
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Example:
    """Tokens of a conversation. What the loss counts is the assistant's, stop tokens included."""

    task: str
    prompt_ids: Int32  # [P] up to the first turn that is learnt, at least one token
    response_ids: Int32  # [T] that turn and all that follows
    is_learnt: Bool | None = None  # [T] tokens of the assistant's turns; None: all

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def num_learnt(self) -> int:
        """Tokens that the loss counts."""
        if self.is_learnt is None:
            return len(self.response_ids)
        return int(self.is_learnt.sum())


def supervised_batch(examples: Sequence[Example]) -> TrainBatch:
    """Examples as a batch of the loop."""
    groups = tuple(_group(index, example) for index, example in enumerate(examples))
    advantages = tuple(np.ones(1, np.float32) for _ in groups)
    rollouts = tuple(np.zeros(1, np.int64) for _ in groups)
    return TrainBatch(groups, advantages, rollouts)


def _group(index: int, example: Example) -> ScoredGroup:
    length = len(example.response_ids)
    prompt_ids = tuple(example.prompt_ids.tolist())
    prompt = Prompt(f"sft/{index}", example.task, "none", prompt_ids, {})
    request = RolloutRequest(prompt, 0, 1, 0, NO_SAMPLING)
    arrays = ChunkArrays(
        token_ids=example.response_ids,
        log_probs=np.zeros(length, np.float32),
        offsets=np.array([0, length], np.int64),
        is_sampled=example.is_learnt,
    )
    chunk = RolloutChunk(
        request,
        request.indices,
        lengths=np.array([length], np.int32),
        is_stopped=np.array([True]),
        version=0,
        newest_version=0,
        engine=-1,
        data=arrays,
        num_sampled=np.array([example.num_learnt], np.int32),
    )
    group = RolloutGroup(prompt, (chunk,))
    return ScoredGroup(group, np.ones(1, np.float32), 0, np.zeros(1, np.float32), NO_MASS)


def supervised_plan(
    config: BroRLConfig,
    examples: Sequence[Example],
    *,
    step: int,
    num_mini_batches: int,
    num_steps: int,
    data_parallel_size: int,
    version: int,
) -> UpdatePlan:
    """Update on examples, packed into micro-batches: `num_mini_batches` optimizer steps after the first `step` ones of
    `num_steps`."""
    return plan_update(
        supervised_batch(examples),
        num_mini_batches=num_mini_batches,
        data_parallel_size=data_parallel_size,
        token_budget=micro_batch_tokens(config) * config.policy.context_parallel_size,
        sharing=Sharing(),
        version=version,
        learning_rate=learning_rate(config.sft, step, num_steps),
        objective="cross_entropy",
        seed=config.trainer.seed + step,
    )


def learning_rate(sft: SftConfig, step: int, num_steps: int) -> float:
    """Of the optimizer step after the first `step` ones: a linear rise, then the schedule down to its last fraction."""
    num_rising = min(sft.warmup_steps, num_steps)
    if step < num_rising:
        return sft.lr * (step + 1) / num_rising
    progress = (step - num_rising) / max(1, num_steps - num_rising)
    if sft.lr_schedule == "constant":
        return sft.lr
    left = 1 - progress
    if sft.lr_schedule == "cosine":
        left = (1 + math.cos(math.pi * progress)) / 2
    last = sft.last_lr_fraction
    return sft.lr * (last + (1 - last) * left)


class Conversations:
    """Examples of conversations, for one model."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        stop_ids: frozenset[int],
        system_prompt: str | None,
    ) -> None:
        """`stop_ids` end a turn; `system_prompt` as in `data`."""
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.system_prompt = system_prompt

    def examples(self, messages: Messages, task: str) -> list[Example]:
        """One example of a whole conversation. A template that writes earlier turns otherwise once others follow, as
        those do that leave out earlier thinking, makes it several: one for each turn that was written anew. Raises
        DataError, or ModelError where the template refuses a conversation."""
        if self.tokenizer.chat_template is None:
            return [self._without_template(messages, task)]
        found: list[_Draft] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            asked = self._render(messages[:number], is_prompt=True)
            answered = self._render(messages[: number + 1], is_prompt=False)
            if not answered.startswith(asked):
                raise DataError(
                    "the model's chat template writes an answer otherwise than it asks for one, so that none of its "
                    "tokens can be told to be the assistant's"
                )
            if not found or not asked.startswith(found[-1].text):
                found.append(_Draft())
            draft = found[-1]
            between = asked.removeprefix(draft.text)
            turn = answered.removeprefix(asked)
            draft.add(self.tokenizer.encode(between), is_learnt=False)
            token_ids = self.tokenizer.encode(turn)
            length = self._turn_length(token_ids)
            draft.add(token_ids[:length], is_learnt=True)
            draft.add(token_ids[length:], is_learnt=False)
            draft.text = answered
        return [draft.example(task) for draft in found]

    def _render(self, messages: Messages, is_prompt: bool) -> str:
        return self.tokenizer.render(messages, self.system_prompt, is_prompt)

    def _turn_length(self, turn: Sequence[int]) -> int:
        """Tokens of a turn that the model must write itself: up to the last stop token."""
        length = len(turn)
        while length > 0:
            if turn[length - 1] in self.stop_ids:
                return length
            length -= 1
        raise DataError(
            "the model's chat template ends an answer without a stop token (eos_token of its tokenizer, eos_token_id "
            "of generation_config.json): the model would not learn to end"
        )

    def _without_template(self, messages: Messages, task: str) -> Example:
        *question, answer = messages
        roles = [message["role"] for message in question]
        if "assistant" in roles:
            raise DataError("the model has no chat template, and a conversation of several turns needs one")
        draft = _Draft()
        prompt_ids = self.tokenizer.prompt_ids(question, self.system_prompt)
        draft.add(prompt_ids, is_learnt=False)
        response_ids = self.tokenizer.encode(answer["content"])
        draft.add(response_ids, is_learnt=True)
        draft.add([self.tokenizer.eos_token_id], is_learnt=True)
        return draft.example(task)


class _Draft:
    """An example being written."""

    def __init__(self) -> None:
        self.text = ""  # that its tokens were made of
        self.token_ids: list[int] = []
        self.is_learnt: list[bool] = []

    def add(self, token_ids: Sequence[int], is_learnt: bool) -> None:
        self.token_ids += token_ids
        self.is_learnt += [is_learnt] * len(token_ids)

    def example(self, task: str) -> Example:
        """What was written, without what follows the last learnt token."""
        token_ids = np.array(self.token_ids, np.int32)
        is_learnt = np.array(self.is_learnt, np.bool_)
        learnt = np.flatnonzero(is_learnt)
        start = int(learnt[0])
        end = int(learnt[-1]) + 1
        mask = is_learnt[start:end]
        return Example(
            task,
            prompt_ids=token_ids[:start],
            response_ids=token_ids[start:end],
            is_learnt=None if mask.all() else mask,
        )


def stop_ids_of(tokenizer: ChatTokenizer, model_folder: Path) -> frozenset[int]:
    """The tokens that end a turn: the tokenizer's and those of generation_config.json."""
    found = {tokenizer.eos_token_id}
    path = model_folder / "generation_config.json"
    if path.is_file():
        settings = json.loads(path.read_text(encoding="utf-8"))
        given = settings.get("eos_token_id")
        if isinstance(given, int):
            found.add(given)
        elif isinstance(given, list):
            found.update(given)
    return frozenset(found)
