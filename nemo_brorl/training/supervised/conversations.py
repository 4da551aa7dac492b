"""Conversations as examples, by which of their tokens are the assistant's.

The model's own chat template writes every turn, and prompt and turn are tokenised apart, as in sampling: an example has
exactly the tokens that the policy would be asked with and would have answered with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.training.supervised.examples import Example

Messages = Sequence[Mapping[str, str]]


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
        found: list[_ConversationDraft] = []
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
            # A template may write earlier turns otherwise once others follow: their example stays as it was.
            if not found or not asked.startswith(found[-1].text):
                found.append(_ConversationDraft())
            draft = found[-1]
            between = asked.removeprefix(draft.text)
            turn = answered.removeprefix(asked)
            draft.add(self.tokenizer.encode(between), has_loss=False)
            token_ids = self.tokenizer.encode(turn)
            length = self._turn_length(token_ids)
            draft.add(token_ids[:length], has_loss=True)
            draft.add(token_ids[length:], has_loss=False)
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
        draft = _ConversationDraft()
        prompt_ids = self.tokenizer.prompt_ids(question, self.system_prompt)
        draft.add(prompt_ids, has_loss=False)
        response_ids = self.tokenizer.encode(answer["content"])
        draft.add(response_ids, has_loss=True)
        draft.add([self.tokenizer.eos_token_id], has_loss=True)
        return draft.example(task)


class _ConversationDraft:
    """An example being written."""

    def __init__(self) -> None:
        self.text = ""  # that its tokens were made of
        self.token_ids: list[int] = []
        self.has_loss: list[bool] = []

    def add(self, token_ids: Sequence[int], has_loss: bool) -> None:
        self.token_ids += token_ids
        self.has_loss += [has_loss] * len(token_ids)

    def example(self, task: str) -> Example:
        """What was written, without what follows the last learnt token."""
        token_ids = np.array(self.token_ids, np.int32)
        has_loss = np.array(self.has_loss, np.bool_)
        learnt = np.flatnonzero(has_loss)
        start = int(learnt[0])
        end = int(learnt[-1]) + 1
        mask = has_loss[start:end]
        return Example(
            task,
            prompt_ids=token_ids[:start],
            response_ids=token_ids[start:end],
            has_loss=None if mask.all() else mask,
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
