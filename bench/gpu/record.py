"""Record what a part of the GPU bench measures.

Rows are written one by one, so that a part that is cut short keeps those it has.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import format_table
from nemo_brorl.core.files import write_atomically

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Row:
    """One figure. Without a value it was not measured, and `note` says why."""

    what: str
    value: float | None
    unit: str = ""
    # what no implementation beats, in the same unit: from bytes and FLOPs over measured ceilings
    floor: float | None = None
    at_least: float | None = None  # the target
    at_most: float | None = None
    note: str = ""

    @property
    def target(self) -> str:
        """As the issue has it."""
        if self.at_least is not None:
            return f"≥ {self.at_least:.3g}"
        return "" if self.at_most is None else f"≤ {self.at_most:.3g}"

    def verdict(self, is_tiny: bool) -> str:
        """met, not met, or not measured, as every target is on CPU; nothing without a target."""
        if not self.target:
            return ""
        if self.value is None or is_tiny:
            return NOT_MEASURED
        is_met = self.value >= self.at_least if self.at_least is not None else self.value <= (self.at_most or 0.0)
        return "met" if is_met else "not met"


class Results:
    """The file of one part. `add` writes it anew each time; `finish` marks it as whole."""

    def __init__(self, path: Path, part: str, is_tiny: bool) -> None:
        self.path, self.part, self.is_tiny = path, part, is_tiny
        self.rows: list[Row] = []
        self.details: dict[str, Any] = {}
        self.is_whole = False
        self.num_failed = 0
        self._write()

    def add(self, row: Row) -> None:
        """Keep a row and print it."""
        self.rows.append(row)
        print("  ".join(filter(None, cells(row, self.is_tiny))), flush=True)
        self._write()

    def detail(self, name: str, value: Any) -> None:
        """Keep something that is no figure of the table: versions, spreads, a profile."""
        self.details[name] = value
        self._write()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Turn an exception inside the context into a row without a value, so that the part continues."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a row that fails costs itself alone
            traceback.print_exc()
            self.num_failed += 1
            self.add(Row(what, None, note=f"failed: {type(error).__name__}: {error}"[:200]))

    def finish(self) -> None:
        """Mark the part as complete and write its file. Raises SystemExit when an attempt failed."""
        self.is_whole = True
        self._write()
        if self.num_failed:
            raise SystemExit(f"{self.part}: {self.num_failed} attempts failed")

    def _write(self) -> None:
        content = {"part": self.part, "tiny": self.is_tiny, "whole": self.is_whole,
                   "rows": [asdict(row) for row in self.rows], "details": self.details}  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(content, indent=1) + "\n")


def read_results(path: Path) -> dict[str, Any] | None:
    """Return the results file of a part, with its rows as `Row`. None: the file cannot be read."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        content["rows"] = [Row(**row) for row in content["rows"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content


def cells(row: Row, is_tiny: bool) -> list[str]:
    """Return a row's cells: what, value, floor, value over floor, target, verdict, note."""
    value = NOT_MEASURED if row.value is None else f"{row.value:.4g} {row.unit}".strip()
    floor = "" if row.floor is None else f"{row.floor:.4g}"
    over = "" if not row.floor or row.value is None else f"{row.value / row.floor:.2f}"
    return [row.what, value, floor, over, row.target, row.verdict(is_tiny), row.note]


HEADER = ["part", "what", "value", "floor", "value/floor", "target", "verdict", "note"]


def table(parts: Sequence[tuple[str, Sequence[Row], bool]]) -> list[str]:
    """Lines of one table over (part, rows, is_tiny)."""
    return format_table(HEADER, [[part, *cells(row, is_tiny)] for part, rows, is_tiny in parts for row in rows])
