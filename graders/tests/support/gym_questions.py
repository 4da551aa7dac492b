"""Questions of Reasoning Gym, as payloads of its verifier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reasoning_gym.factory import create_dataset


def gym_payloads(task: str, num: int, seed: int, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Draw the first `num` questions of a task with these settings."""
    settings = dict(config or {})
    dataset = create_dataset(task, **settings, seed=seed, size=num)
    payloads = []
    for entry in dataset:
        asked: dict[str, Any] = {"dataset": task, "config": settings}
        for key in ("question", "answer", "metadata"):
            asked[key] = entry[key]
        # As a question travels to its verifier: what JSON has no form for, as text.
        payloads.append(json.loads(json.dumps(asked, default=str)))
    return payloads
