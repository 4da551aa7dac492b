"""Tokens between two turns of the model, by its chat template: the end of its message, what it is told, and the
beginning of its next message.

They are the difference between two renderings of a conversation, with and without the observation; what the model
wrote is never rendered, so it is never tokenised again. That is right for templates which only append. One that changes
earlier turns (drops their thinking, say) would show the model, in use, another text than the one it was trained on: it
is refused before a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brorl_graders.environments import registry, tool_calls

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import ChatTokenizer, Messages, Tools

MARK = "brorl7a1c"  # stands for what the model wrote; no template has it
QUESTION = ({"role": "user", "content": "a question"},)
THOUGHT = f"<think>\nof {MARK}\n</think>\n\nanswer {MARK}"
MAX_SHOWN = 60  # characters
WITHOUT_TEMPLATE = "\n\n{}\n"  # as `ChatTokenizer.prompt_ids` puts messages together


class TurnTokens:
    """For one model. Threads may share it."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def tool_format(self) -> str:
        """The format in which the model calls tools; of a model without tools, any."""
        template = self.tokenizer.chat_template or ""
        return tool_calls.find_format(template) or tool_calls.ANY_FORMAT

    def after(
        self,
        messages: Messages,
        response_ids: Sequence[int],
        is_stopped: bool,
        observation: Messages,
    ) -> list[int]:
        """Tokens that follow a turn. `messages` are the prompt's, `response_ids` all behind the prompt so far, the stop
        token included where it was sampled (`is_stopped`); it is not repeated. Raises ModelError when the template
        refuses the observation."""
        if self.tokenizer.chat_template is None:
            told = "\n\n".join(message["content"] for message in observation)
            return self.tokenizer.encode(WITHOUT_TEMPLATE.format(told))
        tokens = self.tokenizer.encode(self._between(messages, observation))
        if is_stopped and response_ids and tokens[:1] == [response_ids[-1]]:
            return tokens[1:]
        return tokens

    def check(self, tools: Tools, roles: Sequence[str] = ("user",)) -> None:
        """Raise ModelError, with the reason, unless the template only appends: for observations of these roles, and
        has a place for tools where there are some, in a format whose calls can be read."""
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
        """Two turns with observations of a role, each a beginning of what comes after it."""
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
    """Raise ConfigError or ModelError unless the environment of a source is one that the model can talk to."""
    if source.environment is None:
        return
    environment = registry.make_environment(source.environment, source.environment_settings)
    if not environment.is_agent:
        QuestionCheck(tokenizer).check(environment.tools)


class QuestionCheck:
    """Checks questions of environments, since an agent's tools are not known before."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.turn_tokens = TurnTokens(tokenizer)
        self._passed: set[str] = set()

    def check(self, tools: Tools) -> None:
        """Raise ModelError unless the model can take part with these tools."""
        written = repr(tools)
        if written not in self._passed:
            self.turn_tokens.check(tools, ["tool"] if tools else ["user"])
            self._passed.add(written)


def _common(text: str, other: str) -> int:
    """Length of the beginning that two texts share."""
    num = 0
    for letter, its in zip(text, other, strict=False):
        if letter != its:
            break
        num += 1
    return num
