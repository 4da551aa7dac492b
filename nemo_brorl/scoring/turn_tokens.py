"""Tokens between two turns of the model under its chat template.

These are the end of the assistant's message, the observation, and the start of its next message. They are the
difference between two renderings of a conversation, with and without the observation. What the model wrote is never
rendered, so it is never tokenised again. That is correct for templates that only append. A template that changes
earlier turns (for example drops their thinking) would show the model other text in use than in training. Such a
template raises before a run.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from brorl_graders.environments import registry, tool_calls

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import ChatTokenizer, Messages, Tools

MARK = f"brorl{secrets.token_hex(8)}"  # placeholder for the model's text, which no template or response contains
QUESTION = ({"role": "user", "content": "a question"},)
THOUGHT = f"<think>\nof {MARK}\n</think>\n\nanswer {MARK}"
MAX_SHOWN = 60  # characters
WITHOUT_TEMPLATE = "\n\n{}\n"  # the format of `ChatTokenizer.prompt_ids`


class TurnTokens:
    """Tokens between turns for one model. Safe to share between threads."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def tool_format(self) -> str:
        """Format in which the model calls tools. For a model without tools, any format."""
        template = self.tokenizer.chat_template or ""
        return tool_calls.find_format(template) or tool_calls.ANY_FORMAT

    def after(
        self,
        messages: Messages,
        response_ids: Sequence[int],
        is_stopped: bool,
        observation: Messages,
    ) -> list[int]:
        """Return the tokens between a turn of the model and its next turn, with the environment's observation.

        `messages` are the prompt's. `response_ids` are all tokens after the prompt so far. A sampled stop token
        (`is_stopped`) is included in them and not repeated. Raises ModelError when the chat template rejects the
        observation.
        """
        observation = [{**message, "content": _valid(message["content"])} for message in observation]
        if self.tokenizer.chat_template is None:
            text = "\n\n".join(message["content"] for message in observation)
            return self.tokenizer.encode(WITHOUT_TEMPLATE.format(text))
        tokens = self.tokenizer.encode(self._between(messages, observation))
        if is_stopped and response_ids and tokens[:1] == [response_ids[-1]]:
            return tokens[1:]
        return tokens

    def check(self, tools: Tools, roles: Sequence[str] = ("user",)) -> None:
        """Raise ModelError, with the reason, unless the chat template leaves earlier turns as they are.

        `roles` are the roles in which an environment's observations are added. The error is also raised if there are
        tools and the template has no place for them, or writes calls in an unknown format.
        """
        template = self.tokenizer.chat_template
        if template is None:
            if tools:
                raise ModelError(
                    "the model has no chat template, and an environment with tools needs one that has them"
                )
            return
        if tools:
            self._check_tools(template, tools)
        for role in roles:
            for text in (MARK, THOUGHT):
                self._check_appends(role, text, tools)

    def _between(self, messages: Messages, observation: Messages) -> str:
        turn = {"role": "assistant", "content": MARK}
        text = self.tokenizer.render([*messages, turn, *observation])
        before, mark, between = text.rpartition(MARK)
        if not mark or MARK in before:
            raise ModelError("the model's chat template drops or repeats what the assistant wrote")
        return between

    def _check_tools(self, template: str, tools: Tools) -> None:
        with_tools = self.tokenizer.render(QUESTION, tools=tools)
        for tool in tools:
            if tool["function"]["name"] not in with_tools:
                raise ModelError(
                    "the model's chat template has no place for tools, and the environment has some; choose a model "
                    "that was taught to call tools, or an environment without"
                )
        if tool_calls.find_format(template) is None:
            known = ", ".join(tool_calls.READERS)
            raise ModelError(
                f"the model's chat template writes tool calls in a format that is not known here ({known})"
            )

    def _check_appends(self, role: str, text: str, tools: Tools) -> None:
        """Raise ModelError unless the chat template only appends text for a turn of the model and an observation.

        Two such turns are tried, with observations of the given role.
        """
        messages: list[dict[str, Any]] = list(map(dict, QUESTION))
        before = self.tokenizer.render(messages, tools=tools)
        for number in range(2):
            said = text.replace(MARK, f"{MARK}{number}")
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": role, "content": f"observation {number}"})
            after = self.tokenizer.render(messages, tools=tools)
            if not after.startswith(before + said):
                expected = before + said
                kept = _common(after, expected)
                shown = slice(kept, kept + MAX_SHOWN)
                raise ModelError(
                    f"the model's chat template rewrites earlier turns when a message of role {role!r} follows: "
                    f"instead of {expected[shown]!r} it writes {after[shown]!r}; a model trained over several turns "
                    "needs one that only appends"
                )
            if f"observation {number}" not in after:
                raise ModelError(f"the model's chat template leaves out messages of role {role!r}")
            before = after


def check_environment(source: SourceConfig, tokenizer: ChatTokenizer) -> None:
    """Raise ConfigError or ModelError unless the model can take part in the environment of a data source."""
    if source.environment is None:
        return
    environment = registry.make_environment(source.environment, source.environment_settings)
    if not environment.is_agent:
        QuestionCheck(tokenizer).check(environment.tools)


class QuestionCheck:
    """Check of single questions, for agents whose tools are not known before."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.turn_tokens = TurnTokens(tokenizer)
        self._passed: set[str] = set()

    def check(self, tools: Tools) -> None:
        """Raise ModelError unless the model's chat template suits an episode with these tools."""
        written = repr(tools)
        if written not in self._passed:
            self.turn_tokens.check(tools, ["tool"] if tools else ["user"])
            self._passed.add(written)


def _valid(text: str) -> str:
    """Return a text without half surrogates, which JSON of a response may have and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def _common(text: str, other: str) -> int:
    """Return the length of the longest common prefix of two texts."""
    num = 0
    for letter, its in zip(text, other, strict=False):
        if letter != its:
            break
        num += 1
    return num
