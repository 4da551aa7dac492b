"""The conversation that asks a question, so that the model knows where its verifier reads the answer.

A verifier that reads `<answer>` tags pays nothing for "The answer is 7.", however often it is right: without a word to
the model every group is all wrong. Where neither the question nor the system prompt names the place, the sentence is
added to the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from brorl_graders import names_in

from nemo_brorl.config.data import DataConfig
from nemo_brorl.core.tokenizer import conversation
from nemo_brorl.prompts.questions import Question

READERS = ("exact_match", "reasoning_gym", "math")  # verifiers that look where `data.answer_format` says
TAG_READERS = ("exact_match", "reasoning_gym")  # and those that want tags where it says nothing
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
    """A question as the model gets it."""

    messages: list[dict[str, str]]
    payload: Mapping[str, Any]
    instruction: str  # that was added; "": none


def place_of_answer(verifier: str, payload: Mapping[str, Any], chosen: str) -> str | None:
    """Where the verifiers of a question read its answer: a key of `INSTRUCTIONS`; None where they find it by
    themselves, or look for none."""
    names = names_in(verifier, payload)
    if chosen != "auto":
        return chosen if any(name in READERS for name in names) else None
    if any(name in TAG_READERS for name in names):
        return "tags"
    place = payload.get("extract")
    return place if "math" in names and place in INSTRUCTIONS else None


def ask(question: Question, system_prompt: str | None, config: DataConfig) -> RenderedQuestion:
    """The conversation that asks a question, with the sentence about the answer's place where nobody says it."""
    messages = conversation(question.messages or question.text, system_prompt)
    place = place_of_answer(question.verifier, question.payload, config.answer_format)
    payload = question.payload
    if place is not None and config.answer_format != "auto":
        payload = {**payload, "answer_format": place}
    if place is None or config.answer_instruction == "":
        return RenderedQuestion(messages, payload, "")
    told = "\n".join(message["content"] for message in messages)
    if NAMED_BY[place].search(told):
        return RenderedQuestion(messages, payload, "")
    instruction = config.answer_instruction or INSTRUCTIONS[place]
    last = messages[-1]
    with_it = {**last, "content": f"{last['content']}\n\n{instruction}"}
    return RenderedQuestion([*messages[:-1], with_it], payload, instruction)
