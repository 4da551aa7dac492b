"""A reward function with a weight. Verifier processes import this module, and cannot import a module of tests."""

from __future__ import annotations

from typing import Any


class Weighted:
    """A reward that pickle takes by reference to this module, and its weight by value."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [self.weight * (text == right) for text, right in zip(completions, answer, strict=True)]
