"""Hash questions: by their words, to split and to compare them, and by all that they are made of."""

from __future__ import annotations

import json
import unicodedata
from typing import NamedTuple

from nemo_brorl.prompts.questions import Question, hash_of


class QuestionKeys(NamedTuple):
    """64-bit hashes of one question."""

    text: int  # its text as written
    form: int  # the normal form of its text
    conversation: int  # its messages as written, with their roles and the system's
    answered: int  # the normal form of its messages, and its payload: equal for a repeat
    content: int  # all that it is made of


def keys_of(question: Question) -> QuestionKeys:
    """Return the hashes of a question, whose payload is JSON-able."""
    messages = [(message["role"], message["content"]) for message in question.messages]
    conversation = json.dumps(messages) if messages else question.text
    payload = {key: value for key, value in question.payload.items() if key not in ("question", *question.others)}
    written = json.dumps([payload, question.verifier], sort_keys=True)
    others = [f"\n{key} {json.dumps(question.payload[key], sort_keys=True)}" for key in question.others]
    return QuestionKeys(
        text=hash_of(question.text),
        form=hash_of(normal_form(question.text)),
        conversation=hash_of(conversation),
        answered=hash_of(f"{normal_form(conversation)}\n{written}"),
        content=hash_of(f"{conversation}\n{written}\n{question.task}{''.join(others)}"),
    )


def normal_form(text: str) -> str:
    """Return a text without blanks, case, invisible characters and compatibility forms, as near repeats share it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    if not folded.isascii():
        folded = "".join(character for character in folded if unicodedata.category(character) != "Cf")
    return "".join(folded.split())


def low_hash(text: str) -> int:
    """Return the low bits of a text's hash, which choose among near repeats, as the high bits decide the split."""
    return hash_of(text) % 2**32
