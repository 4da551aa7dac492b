"""What a person sees: progress of the stage that runs, one line per step, a table at the end. Standard error and output
only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

REFRESH_S = 0.2  # on a terminal
QUIET_REFRESH_S = 5.0  # in a log file, where every refresh is a line

Item = TypeVar("Item")


class Console:
    """Writes progress to standard error: one changing line on a terminal, a line every few seconds in a log."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.last_shown = 0.0
        self.width = 0

    def track(self, stage: str, items: Iterable[Item], total: int, unit: str, weight: int = 1) -> Iterator[Item]:
        """Pass `items` through and show how far the stage is: each item stands for `weight` units of `total`."""
        start, done = time.monotonic(), 0
        self.last_shown = start
        for item in items:
            done += weight
            self.progress(stage, min(done, total), total, unit, time.monotonic() - start)
            yield item
        self.clear()

    def begin(self) -> None:
        """A stage begins: nothing is shown before it could have got anywhere."""
        self.last_shown = time.monotonic()

    def progress(self, stage: str, done: int, total: int, unit: str, seconds: float) -> None:
        """Show a stage's progress, not more often than the medium takes well."""
        now = time.monotonic()
        if now - self.last_shown < (REFRESH_S if self.is_terminal else QUIET_REFRESH_S):
            return
        self.last_shown = now
        text = f"  {stage}: {done:,}/{total:,} {unit}, {done / max(seconds, 1e-9):,.0f} {unit}/s"
        if self.is_terminal:
            sys.stderr.write("\r" + text.ljust(self.width))
            self.width = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def stage(self, text: str) -> None:
        """Say what runs now, where there is no count to show; on a terminal only."""
        if self.is_terminal:
            sys.stderr.write("\r" + f"  {text} ...".ljust(self.width))
            self.width = len(text) + 6
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the changing line."""
        if self.is_terminal and self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0

    def line(self, text: str = "") -> None:
        """A line that stays."""
        self.clear()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table: first column left, the others right."""
        for text in format_table(header, rows):
            self.line(text)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of an aligned table with a rule under its header."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [header, *rows]
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
