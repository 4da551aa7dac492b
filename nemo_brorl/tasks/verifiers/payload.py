"""What verifiers read from a prompt's payload, and words for what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Payload = Mapping[str, Any]
Score = Callable[[Payload, str], float]
Answer = Callable[[Payload, str], str | None]  # None: the response gives none


def accepted_answers(payload: Payload) -> list[str]:
    """`payload["answer"]` as a list: a text, a number, or a list of those, any of which is right."""
    answer = payload["answer"]
    return [str(item) for item in answer] if isinstance(answer, (list, tuple)) else [str(answer)]


def check_answer(payload: Payload) -> Iterator[str]:
    """What is wrong with `payload["answer"]`."""
    answer = payload.get("answer")
    items = answer if isinstance(answer, (list, tuple)) else [answer]
    if not items or any(
        isinstance(item, bool) or not isinstance(item, (str, int, float)) or not str(item).strip() for item in items
    ):
        yield f"'answer' is {answer!r}; write a text, a number, or a list of those"


def check_choice(payload: Payload, key: str, choices: Sequence[str]) -> Iterator[str]:
    """What is wrong with an option that has a default."""
    if payload.get(key, choices[0]) not in choices:
        yield f"{key!r} is {payload[key]!r}; choose {', '.join(choices)}"
