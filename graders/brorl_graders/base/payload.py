"""What verifiers read from a prompt's payload, words for what is wrong with one, and how long a verifier may take.

A verifier's process is killed after the first of these that is there: `timeout_s` in the payload (an option of a source
or of a domain, `verifier_options: {timeout_s: 60}`), the verifier's own in `rewards.timeouts`, `rewards.timeout_s`. The
parts of a composite verifier are scored one after the other, and their times add up.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SUCCESS_REWARD = 1.0  # of a response that is right in full


Payload = Mapping[str, Any]
Scored = float | tuple[float, str]  # a score; or one with what the verifier says of it
Score = Callable[[Payload, str], Scored]
Answer = Callable[[Payload, str], str | None]  # None: the response gives none
Check = Callable[[Payload], Iterator[str]]
Load = Callable[[], object]

ENVIRONMENT = "environment"  # stands for the verifier where an environment answers
UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's categories of control characters, format marks and blanks

TIMEOUT_KEY = "timeout_s"


def accepted_answers(payload: Payload) -> list[str]:
    """`payload["answer"]` as a list: a text, a number, or a list of those, any of which is right."""
    answer = payload["answer"]
    if not isinstance(answer, (list, tuple)):
        return [str(answer)]
    return [str(item) for item in answer]


def reference_text(payload: Payload) -> str | None:
    """The reference answer as it is written, also of a question that an environment asks; None: there is none."""
    asked = payload
    if ENVIRONMENT in payload and isinstance(payload.get("task"), Mapping):
        asked = payload["task"].get("payload") or {}
    answer = asked.get("answer")
    return None if answer is None else str(answer)


def score_and_reason(scored: Scored) -> tuple[float, str]:
    """Both, "" for the reason where the verifier says nothing."""
    if isinstance(scored, tuple):
        score, reason = scored
        return float(score), str(reason)
    return float(scored), ""


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: it is empty, or of blanks and characters without width."""
    return all(unicodedata.category(character) in UNSEEN for character in text)


def check_answer(payload: Payload) -> Iterator[str]:
    """What is wrong with `payload["answer"]`."""
    answer = payload.get("answer")
    items = [answer]
    if isinstance(answer, (list, tuple)):
        items = list(answer)
    if not items or not all(map(_is_answer, items)):
        yield f"'answer' is {answer!r}; write a text, a number, or a list of those"


def _is_answer(item: Any) -> bool:
    if isinstance(item, str):
        return not is_blank(item)
    return is_number(item)


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number; true and false are none."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float))


def is_list(value: Any) -> bool:
    """Whether a value of JSON or of a settings file is a list with something in it."""
    if not isinstance(value, (list, tuple)):
        return False
    return len(value) > 0


def check_choice(payload: Payload, key: str, choices: Sequence[str]) -> Iterator[str]:
    """What is wrong with an option that has a default, the first of its choices."""
    chosen = payload.get(key, choices[0])
    if chosen not in choices:
        yield f"{key!r} is {chosen!r}; choose {', '.join(choices)}"


@dataclass(frozen=True)
class Deadlines:
    """Seconds for one response, by verifier."""

    default_s: float
    by_verifier: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, verifier: str, payload: Payload) -> float:
        """For this verifier with this payload."""
        if TIMEOUT_KEY in payload:
            return float(payload[TIMEOUT_KEY])
        if verifier != "composite" or verifier in self.by_verifier:
            return self.by_verifier.get(verifier, self.default_s)
        total = 0.0
        for part in payload["parts"]:
            options = part.get("options", {})
            total += self.seconds(part["verifier"], options)
        return total


def check_timeout(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload's own deadline."""
    value = payload.get(TIMEOUT_KEY, 1.0)
    if not is_number(value) or not 0 < value < math.inf:
        yield f"'{TIMEOUT_KEY}' is {value!r}; write the seconds that one response may take, above 0"
