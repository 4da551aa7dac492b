"""Build the conversation that asks a question, and tell the model where to write the answer.

A verifier that reads `<answer>` tags gives no reward for "The answer is 7.", even if it is right. Without an
instruction every group would be all wrong. If neither the question nor the system prompt names the place of the answer,
a sentence is added to the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from brorl_graders import names_in, with_full_mark

from nemo_brorl.config.data import DataConfig
from nemo_brorl.core.tokenizer import ChatTokenizer, conversation
from nemo_brorl.prompts.questions import Question

READERS = ("exact_match", "reasoning_gym", "math")  # verifiers that read the place that `data.answer_format` names
TAG_READERS = ("exact_match", "reasoning_gym")  # verifiers that read tags under `data.answer_format=auto`
INSTRUCTIONS = {
    "tags": "Write only the final answer between <answer> and </answer>.",
    "boxed": "Write the final answer in \\boxed{}.",
    "last": 'End with a line "The answer is X.", where X is the final answer.',
}
NAMED_BY = {
    "tags": re.compile(r"<answer>", re.IGNORECASE),
    "boxed": re.compile(r"boxed", re.IGNORECASE),
    "last": re.compile(r"answer is|answer:|####", re.IGNORECASE),
}


class RenderedQuestion(NamedTuple):
    """A question in the form that the model gets."""

    messages: list[dict[str, str]]
    payload: Mapping[str, Any]
    instruction: str  # sentence that was added; "": none


def with_open_thought(verifier: str, payload: Mapping[str, Any], tokenizer: ChatTokenizer) -> Mapping[str, Any]:
    """Return a payload that tells the verifier `format` if the chat template opens `<think>` in the prompt."""
    if "format" in names_in(verifier, payload) and tokenizer.opens_thought:
        return {"is_think_open": True, **payload}
    return payload


def place_of_answer(verifier: str, payload: Mapping[str, Any], chosen: str) -> str | None:
    """Return where in a response the verifiers of a question read the answer, such as "tags" or "boxed".

    The result is a key of `INSTRUCTIONS`. None: the verifiers find the answer themselves, or read none.
    """
    names = names_in(verifier, payload)
    if chosen != "auto":
        return chosen if any(name in READERS for name in names) else None
    if any(name in TAG_READERS for name in names):
        return "tags"
    place = payload.get("extract")
    return place if "math" in names and place in INSTRUCTIONS else None


def render_question(
    question: Question, system_prompt: str | None, config: DataConfig, success_reward: float | None = None
) -> RenderedQuestion:
    """Return the conversation that asks a question.

    If a verifier reads the answer at a place that the conversation does not name, an instruction to write it there is
    added, unless the setting `answer_instruction` is empty. The payload gets `success_reward`, if a setting gives one.
    """
    messages = conversation(question.messages or question.text, system_prompt)
    place = place_of_answer(question.verifier, question.payload, config.answer_format)
    payload = question.payload
    if success_reward is not None:
        payload = with_full_mark(payload, success_reward)
    if place is not None and config.answer_format != "auto":
        payload = {**payload, "answer_format": place}
    if place is None or config.answer_instruction == "":
        return RenderedQuestion(messages, payload, "")
    text = "\n".join(message["content"] for message in messages)
    if NAMED_BY[place].search(text):
        return RenderedQuestion(messages, payload, "")
    instruction = config.answer_instruction or INSTRUCTIONS[place]
    last = messages[-1]
    with_it = {**last, "content": f"{last['content']}\n\n{instruction}"}
    return RenderedQuestion([*messages[:-1], with_it], payload, instruction)
