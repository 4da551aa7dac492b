"""Conversion of conversations to examples, with a mask of the assistant's tokens.

The model's own chat template writes every turn, and prompt and turn are tokenised separately, as in sampling. So an
example has exactly the tokens with which the policy would be prompted and would have answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.training.supervised.examples import Example

Messages = Sequence[Mapping[str, str]]


class Conversations:
    """Converter of conversations to examples, for one model."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        stop_ids: frozenset[int],
        system_prompt: str | None,
    ) -> None:
        """Use a model's tokenizer to turn conversations into training examples.

        `stop_ids`: tokens that end an assistant's turn. `system_prompt`: replaces that of every conversation unless
        it is None, and an empty one removes it.
        """
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.system_prompt = system_prompt

    def examples(self, messages: Messages, task: str) -> list[Example]:
        """Return training examples of a conversation: one, or several if the chat template rewrites earlier turns.

        Some templates change earlier turns once others follow, such as those that leave out earlier thinking. Then
        there is one example for each turn that was rewritten. Raises DataError, or ModelError when the template rejects
        the conversation.
        """
        if self.tokenizer.chat_template is None:
            return [self._without_template(messages, task)]
        drafts: list[_ConversationDraft] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._render(messages[:number], is_prompt=True)
            answered = self._render(messages[: number + 1], is_prompt=False)
            if not answered.startswith(prompt):
                raise DataError(
                    "the model's chat template writes an answer otherwise than it asks for one, so that none of its "
                    "tokens can be told to be the assistant's"
                )
            # If the template has rewritten earlier turns, their example stays, and a new one starts.
            if not drafts or not prompt.startswith(drafts[-1].text):
                drafts.append(_ConversationDraft())
            draft = drafts[-1]
            between = prompt.removeprefix(draft.text)
            turn = answered.removeprefix(prompt)
            draft.add(self.tokenizer.encode(between), has_loss=False)
            token_ids = self.tokenizer.encode(turn)
            length = self._turn_length(token_ids)
            draft.add(token_ids[:length], has_loss=True)
            draft.add(token_ids[length:], has_loss=False)
            draft.text = answered
        return [draft.example(task) for draft in drafts]

    def _render(self, messages: Messages, is_prompt: bool) -> str:
        return self.tokenizer.render(messages, self.system_prompt, is_prompt)

    def _turn_length(self, turn: Sequence[int]) -> int:
        """Return how many tokens of an assistant's turn the model must write itself: up to the last stop token."""
        length = len(turn)
        while length > 0:
            if turn[length - 1] in self.stop_ids:
                return length
            length -= 1
        raise DataError(
            "the model's chat template ends an answer without a stop token (eos_token of its tokenizer, eos_token_id "
            "of generation_config.json, rollouts.stop_tokens): the model would not learn to end"
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
    """An example while it is built."""

    def __init__(self) -> None:
        self.text = ""  # text of its tokens
        self.token_ids: list[int] = []
        self.has_loss: list[bool] = []

    def add(self, token_ids: Sequence[int], has_loss: bool) -> None:
        self.token_ids += token_ids
        self.has_loss += [has_loss] * len(token_ids)

    def example(self, task: str) -> Example:
        """Build the training example of a conversation, without tokens after the last one that the loss counts."""
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
