"""An answer drawn by kind: references, right and wrong ways to write it, and whole responses."""

from __future__ import annotations

from typing import Any, NamedTuple


class Drawn(NamedTuple):
    """Texts of one drawn answer. `said` and `missaid` are whole responses; the other texts are put into one."""

    references: list[str]
    right: list[str]
    wrong: list[str]
    said: list[str] = []  # noqa: RUF012
    missaid: list[str] = []  # noqa: RUF012
    payload: dict[str, Any] = {}  # noqa: RUF012
    verifier: str = "math"
