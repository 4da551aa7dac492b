"""What a row is, and what a table of rows can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used."""

    reason: str


Row = dict[str, Any] | BadRow


class Table(Protocol):
    """Rows of one file, by number; only an index of them is held in memory."""

    path: Path
    columns: Sequence[str] | None  # None where each row has its own

    def __len__(self) -> int:
        """Number of rows."""

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop)."""

    def where(self, index: int) -> str:
        """Row `index` for a message: file and line."""
