"""What verifiers read from a prompt's payload, messages about a wrong payload, and deadlines of verifiers.

A verifier's process is killed after a deadline. The first of these that is set counts:

- `timeout_s` in the payload, an option of a source or domain: `verifier_options: {timeout_s: 60}`,
- the verifier's entry in `rewards.timeouts`,
- `rewards.timeout_s`.

The parts of a composite verifier are scored one after another, and their deadlines add up.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brorl_graders.base.errors import DataError

EQUAL = 1e-6  # rewards are equal whose difference is at most this share of their size
SUCCESS_REWARD = 1.0 - EQUAL  # lowest reward of a right response of a built-in verifier, before a discount
FULL_MARK_KEY = "data.success_reward"  # key of the payload with that setting; no column of a row has this name


Payload = Mapping[str, Any]
Scored = float | tuple[float, str]  # a score alone, or a score with a reason
Score = Callable[[Payload, str], Scored]
Answer = Callable[[Payload, str], str | None]  # reads the answer of a response; None: the response gives no answer
Check = Callable[[Payload], Iterator[str]]
Load = Callable[[], object]

ENVIRONMENT = "environment"  # name in place of a verifier for prompts of an environment
UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode categories of control characters, format marks and blanks

TIMEOUT_KEY = "timeout_s"


class Key(NamedTuple):
    """One key of the payload that a verifier reads. docs/built_in_verifiers.md shows the keys of all verifiers."""

    name: str
    meaning: str  # one line of Markdown for users
    choices: tuple[str, ...] = ()  # allowed texts, the default first; empty: `check` of the verifier knows the values
    default: str = ""  # default of a key without choices, as JSON; "": none
    is_required: bool = False


ANSWER = Key("answer", "right answer: a text, a number, or a list of right answers", is_required=True)


def accepted_answers(payload: Payload) -> list[str]:
    """Return `payload["answer"]`, a text, a number, or a list of those, as a list of texts, each of which is right.

    50.0, which tables of pandas make of 50, may be written with and without its point.
    """
    answer = payload["answer"]
    items = answer if isinstance(answer, (list, tuple)) else [answer]
    whole = [str(int(item)) for item in items if isinstance(item, float) and item.is_integer()]
    return [*whole, *map(str, items)]


def reference_text(payload: Payload) -> str | None:
    """Return the reference answer of a prompt as it is written, or None when the prompt has none.

    For the prompt of an environment, this is the answer to the question in the environment's task.
    """
    question = payload
    if ENVIRONMENT in payload and isinstance(payload.get("task"), Mapping):
        question = payload["task"].get("payload") or {}
    answer = question.get("answer")
    return None if answer is None else str(answer)


def full_mark(payload: Payload) -> float:
    """Return the reward from which a response to the prompt with this payload is right: 1 unless a setting names it.

    Raises DataError for the payload of a damaged store, whose full mark is no number.
    """
    mark = payload.get(FULL_MARK_KEY, 1.0)
    if not is_number(mark) or not math.isfinite(mark):
        raise DataError(f"'{FULL_MARK_KEY}' is {mark!r}; write a number")
    return float(mark)


def lowest_right(mark: float) -> float:
    """Return the lowest reward of a right response whose full mark is `mark`, which leaves room for rounding."""
    return mark - EQUAL * abs(mark)


def with_full_mark(payload: Payload, mark: float) -> Payload:
    """Return a payload with the full mark of its source, also for the question in an environment's task."""
    marked = {**payload, FULL_MARK_KEY: mark}
    task = payload.get("task")
    if ENVIRONMENT in payload and isinstance(task, Mapping) and isinstance(task.get("payload"), Mapping):
        marked["task"] = {**task, "payload": {**task["payload"], FULL_MARK_KEY: mark}}
    return marked


def score_and_reason(scored: Scored) -> tuple[float, str]:
    """Return score and reason of a verifier's result. The reason is "" where the verifier returns a score alone.

    Raises TypeError or ValueError when the score is no number. A text is none.
    """
    score, reason = scored if isinstance(scored, tuple) else (scored, "")
    if isinstance(score, str):
        raise TypeError(f"the score is the text {score!r:.50}")
    return float(score), str(reason)


def is_blank(text: str) -> bool:
    """Return whether a text is empty or has nothing but blanks, control characters and characters without width."""
    return all(unicodedata.category(character) in UNSEEN for character in text)


def check_answer(payload: Payload) -> Iterator[str]:
    """Yield a message when `payload["answer"]` is no text, no number and no list of those."""
    answer = payload.get("answer")
    items = [answer]
    if isinstance(answer, (list, tuple)):
        items = list(answer)
    if not items or not all(map(_is_answer, items)):
        yield f"'answer' is {answer!r}; write a text, a number, or a list of those"


def _is_answer(item: Any) -> bool:
    if isinstance(item, str):
        return not is_blank(item)
    return is_number(item) and (isinstance(item, int) or math.isfinite(item))


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number, which true and false are not."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float))


def is_list(value: Any) -> bool:
    """Return whether a value of JSON or of a settings file is a list with at least one item."""
    if not isinstance(value, (list, tuple)):
        return False
    return len(value) > 0


def check_choice(payload: Payload, key: str, choices: Sequence[str]) -> Iterator[str]:
    """Yield a message when the option `key` of a payload has a value outside `choices`, whose first is the default."""
    chosen = payload.get(key, choices[0])
    if chosen not in choices:
        yield f"{key!r} is {chosen!r}; choose {', '.join(choices)}"


def check_choices(payload: Payload, keys: Sequence[Key]) -> Iterator[str]:
    """Yield a message for each of these keys whose value in a payload is none of the key's choices."""
    for key in keys:
        if key.choices:
            yield from check_choice(payload, key.name, key.choices)


@dataclass(frozen=True)
class Deadlines:
    """Seconds that verifiers may take for one response, with a default and exceptions by verifier."""

    default_s: float
    by_verifier: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, verifier: str, payload: Payload) -> float:
        """Return the seconds that a verifier may take for one response to the prompt with this payload."""
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
    """Yield a message when the deadline for scoring in a payload (`timeout_s`) is no finite number above 0."""
    value = payload.get(TIMEOUT_KEY, 1.0)
    if not is_number(value) or not 0 < value < math.inf:
        yield f"'{TIMEOUT_KEY}' is {value!r}; write the seconds that one response may take, above 0"
