"""The score of a Reasoning Gym task's own `score_answer`: 1 for a right answer, and whatever part of it the task
grants."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from nemo_brorl.tasks.verifiers.answer import extract_answer

BOARD_TASKS = ("arc_agi", "rearc")  # a right answer to these equals metadata["output"], tuples of tuples


def score(payload: Mapping[str, Any], response: str) -> float:
    """Score the response to the entry in `payload` (`dataset`, `config`, `question`, `answer`, `metadata`). No answer
    scores 0."""
    given = extract_answer(response)
    if given is None:
        return 0.0
    return float(
        _score_answer(payload["dataset"], json.dumps(payload["config"], sort_keys=True))(given, _entry(payload))
    )


def answer(payload: Mapping[str, Any], response: str) -> str | None:
    """The response's answer, one blank for a run of white space."""
    return " ".join((extract_answer(response) or "").split()) or None


def check(payload: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a payload: an entry that lacks a part."""
    if missing := [key for key in ("dataset", "config", "question", "answer", "metadata") if key not in payload]:
        yield (
            f"the payload has no {', '.join(missing)}; it holds an entry of a Reasoning Gym task, its name and "
            f"its settings"
        )


def _entry(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry as the task made it: boards are compared as tuples, and JSON has only lists."""
    if payload["dataset"] not in BOARD_TASKS:
        return payload
    metadata = payload["metadata"]
    return {**payload, "metadata": {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}}


def load() -> None:
    """Import Reasoning Gym (about a second) ahead of the first score, whose deadline it would eat."""
    import reasoning_gym as library  # noqa: F401


@lru_cache(maxsize=256)
def _score_answer(dataset: str, config: str) -> Callable[[str, Mapping[str, Any]], float]:
    """A dataset object with the task's settings (some tasks score by them); generating nothing, it is cheap to make."""
    from reasoning_gym.factory import create_dataset

    return create_dataset(dataset, **json.loads(config), seed=0, size=1).score_answer
