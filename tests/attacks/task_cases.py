"""Tasks of Reasoning Gym, one question each, as the verifier `reasoning_gym` is given them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.attacks.cases import TAGGED, Case

FAMILY = "reasoning_gym"
SEED = 5
# Many tasks give 0.01 for a wrong answer, some 0.05, some a little for its length (docs/reference/verifiers.md).
GRANTED = 0.05
NOT_ASKED = ("composite", "codeio")  # a mixture of the others; one that runs programs of its own to make questions
# Answers without an idea, each of which may earn what a task grants for its form.
CONSTANTS = (
    *("", "0", "1", "-1", "2", "10", "24", "100", "0.5", "1/2", "1e9", "x", "a", "A", "yes", "no", "True", "False"),
    *("None", "nan", "inf", "[]", "[0]", "[[0]]", "{}", "()", "0 0", "0, 0", "1 2 3", "x + 1", "x**2", "?", "unknown"),
    *("a b c", "the", "Monday", "YES NO", "0\n0", "_ _ _", "[[0, 0], [0, 0]]", "{'a': 0}", '{"a": 0}', "up", "L R"),
    *("( ) [ ] { }", "I do not know what the right answer to this question could be."),
)


def task_names() -> list[str]:
    """Every task of the installed version."""
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS).difference(NOT_ASKED))


def task_case(task: str) -> Case | None:
    """A question of this task; None where it has no right answer to show."""
    payload = _payload(task)
    answer = payload["answer"]
    if not isinstance(answer, str):
        return None
    return Case(
        name=f"{FAMILY}/{task}",
        family=FAMILY,
        verifier=FAMILY,
        payload=payload,
        right=TAGGED.format(answer),
        wrong=TAGGED.format("neither"),
        granted=GRANTED,
        honest=("I do not know.", *map(TAGGED.format, CONSTANTS)),
    )


def task_cases() -> Iterator[Case]:
    """One question of every task with a right answer."""
    for task in task_names():
        case = task_case(task)
        if case is not None:
            yield case


def _payload(task: str) -> dict[str, Any]:
    from reasoning_gym.factory import create_dataset

    entry = create_dataset(task, seed=SEED, size=1)[0]
    payload = {"dataset": task, "config": {}}
    for key in ("question", "answer", "metadata"):
        payload[key] = entry[key]
    as_json: dict[str, Any] = json.loads(json.dumps(payload, default=str))
    return as_json
