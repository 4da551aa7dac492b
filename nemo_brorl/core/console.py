"""Write console output and logs: progress on standard error, lines and tables on standard output.

Nothing else writes to the terminal. All text is made inert, and styles are added afterwards.

On a terminal `rich` draws them. In a file, with NO_COLOR, and where rich is not installed (a login node), they are
plain lines without escape codes. Driver and actors log in one format.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from brorl_graders.base.foreign import inert

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH_S = 0.2  # seconds between two updates of a progress bar
QUIET_REFRESH_S = 5.0  # seconds between two lines of progress in a file
MAX_RULE = 120  # characters of the rule under a plain table's header

CLEAR = "\033[H\033[2J"  # escape codes that clear a terminal

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Packages whose log records are shown.
LOGGED = ("nemo_brorl", "brorl_graders", "brorl_lab", "brorl_launcher")


def write_out(text: str) -> None:
    """Write text to standard output, inert: it may quote strangers, and a terminal obeys what it is sent."""
    _write(sys.stdout, text)


def write_error(text: str) -> None:
    """Write text to standard error, inert."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    stream.write(inert(text))
    stream.flush()


def without_colours(text: str) -> str:
    """Return the text of a log without the escape sequences for colours, which Ray and vLLM write."""
    return _COLOUR.sub("", text)


def clear_screen() -> None:
    """Clear the terminal on standard output."""
    sys.stdout.write(CLEAR)


class _InertFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as text that no terminal obeys."""
        return inert(super().format(record))


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose `__name__` is `name`."""
    return logging.getLogger(name)


def setup_logging(role: str = "driver") -> None:
    """Send the log records of our packages to stderr, with the time and the process's role.

    `role`: for example `driver`, `policy 0` or `engine 1`. The environment variable BRORL_LOG_LEVEL sets the level, by
    default INFO. Another call replaces the handler.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_InertFormatter(f"%(asctime)s {role} %(levelname).1s %(message)s", datefmt="%H:%M:%S"))
    for package in LOGGED:
        logger = logging.getLogger(package)
        logger.handlers[:] = [handler]
        logger.setLevel(os.environ.get("BRORL_LOG_LEVEL", "INFO"))
        logger.propagate = False


def is_drawn(stream: TextIO) -> bool:
    """Return whether rich draws on a stream: it is a terminal, NO_COLOR is not set, and rich is installed."""
    return stream.isatty() and "NO_COLOR" not in os.environ and importlib.util.find_spec("rich") is not None


class Console:
    """Writer of progress, lines and tables to the console."""

    def __init__(self) -> None:
        self.draws_progress = is_drawn(sys.stderr)
        self.last_shown = 0.0
        self._bar: Progress | None = None  # None: no bar is on the screen

    def begin(self) -> None:
        """Start the clock of a progress bar, so that the bar first appears after one refresh interval."""
        self.last_shown = time.monotonic()

    def progress(
        self,
        stage: str,
        done: int,
        total: int,
        unit: str,
        seconds: float,
    ) -> None:
        """Show the progress of a stage such as sampling, at most every 0.2 s on a terminal and every 5 s in a file."""
        now = time.monotonic()
        if now - self.last_shown < (REFRESH_S if self.draws_progress else QUIET_REFRESH_S):
            return
        self.last_shown = now
        rate = done / max(seconds, 1e-9)
        text = f"{stage}: {done:,}/{total:,} {unit}, {rate:,.0f} {unit}/s"
        if self.draws_progress:
            self._draw(text, done, total)
        else:
            write_error(f"  {text}\n")

    def stage(self, text: str) -> None:
        """Show a text, such as the name of a stage without a count, on a terminal only."""
        if self.draws_progress:
            self._draw(f"{text} ...", 0, None)

    def clear(self) -> None:
        """Remove the progress bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def line(self, text: str = "") -> None:
        """Write one line to standard output, after removing the progress bar."""
        self.clear()
        write_out(f"{text}\n")

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        text_columns: Collection[int] = (0,),
        styles: Mapping[str, str] | None = None,
    ) -> None:
        """Write a table to standard output; columns of text are left-aligned, numbers right-aligned.

        `styles`: rich's style of cells by their text, for example {"fail": "bold red"}.
        """
        self.clear()
        header = _in_cells(header)
        rows = [_in_cells(row) for row in rows]
        if is_drawn(sys.stdout):
            draw_table(header, rows, text_columns, styles or {})
            return
        for text in format_table(header, rows, text_columns):
            self.line(text)

    def _draw(self, text: str, done: int, total: int | None) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        text = inert(text)
        if self._bar is None:
            columns = (TextColumn("  {task.description}", markup=False), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=RichConsole(file=sys.stderr), transient=True, auto_refresh=False)
            self._bar.add_task(text, total=total)
            self._bar.start()
        [task] = self._bar.task_ids
        self._bar.update(task, description=text, completed=done, total=total, refresh=True)


def _in_cells(row: Sequence[str]) -> list[str]:
    # A name with a line break would look like another row.
    return [inert(cell).replace("\n", "\\n") for cell in row]


def draw_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    text_columns: Collection[int],
    styles: Mapping[str, str],
) -> None:
    """Draw a table on the terminal with rich; long cells are wrapped."""
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for index, name in enumerate(header):
        table.add_column(Text(name), justify="left" if index in text_columns else "right", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell, style=styles.get(cell, "")) for cell in row])
    RichConsole(file=sys.stdout).print(table)


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Collection[int] = (0,)
) -> list[str]:
    """Return a table as aligned plain-text lines, with a rule under its header."""
    widths = [len(name) for name in header]
    for row in rows:
        for index, cell in enumerate(row):
            widths[index] = max(widths[index], len(cell))
    lines = []
    for row in (header, *rows):
        cells = []
        for index, cell in enumerate(row):
            cells.append(cell.ljust(widths[index]) if index in text_columns else cell.rjust(widths[index]))
        lines.append("  ".join(cells).rstrip())
    whole = sum(widths) + 2 * (len(widths) - 1)
    return [lines[0], "-" * min(whole, MAX_RULE), *lines[1:]]
