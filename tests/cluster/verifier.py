"""A verifier that a random model can please: it wants capital letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def wants_capitals(payload: Mapping[str, Any], response: str) -> float:
    """1 when at least a quarter of the characters are capital letters."""
    return float(sum(character.isupper() for character in response) >= max(1, len(response) / 4))
