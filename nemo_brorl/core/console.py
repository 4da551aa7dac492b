"""Write console output and logs: progress on standard error, lines and tables on standard output.

Nothing else writes to the terminal. All text is made inert, and styles are added afterwards.

On a terminal `rich` draws them. In a file, with NO_COLOR, and where rich is not installed (a login node), they are
plain lines without escape codes. Driver and actors log in one format.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from brorl_graders.base.foreign import inert, inert_line

from nemo_brorl.core.table_layout import fitted, records, wrap

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH_S = 0.2  # seconds between two updates of a progress bar
QUIET_REFRESH_S = 5.0  # seconds between two lines of progress in a file
MAX_RULE = 120  # characters of the rule under a plain table's header

CLEAR = "\033[H\033[2J"  # escape codes that clear a terminal
ERASE_LINE = "\r\033[2K"
NARROW = 80  # columns of a terminal that does not say its width
INDENT = "    "  # indentation of a line's further lines
GAP, DRAWN_GAP = 2, 3  # characters between the columns of a plain table, and of one that rich draws
NUM_EARLY_LINES = 1000  # lines that are kept for a log file that is opened after them

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Packages whose log records are shown.
LOGGED = ("nemo_brorl", "brorl_graders", "brorl_lab", "brorl_launcher")


def write_out(text: str) -> None:
    """Write text to standard output, inert: it may quote strangers, and a terminal obeys what it is sent."""
    _write(sys.stdout, text)


def write_words(text: str) -> None:
    """Write text to standard output, inert. A terminal breaks it between words, which scripts and JSON do not bear."""
    _write(sys.stdout, _broken(text, sys.stdout))


def write_error(text: str) -> None:
    """Write text to standard error, inert. A terminal breaks it between words."""
    _write(sys.stderr, _broken(text, sys.stderr))


def _write(stream: TextIO, text: str) -> None:
    text = inert(text)
    with _output.lock:
        _output.erase()
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            error.filename = stream.name
            raise
        _output.keep(text)


class _Output:
    """What all writers of this process share: the live line on the terminal, and the log file."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.has_live_line = False
        self.log: TextIO | None = None
        self.early: deque[str] = deque(maxlen=NUM_EARLY_LINES)  # lines from before there was a log file

    def erase(self) -> None:
        if self.has_live_line:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()
            self.has_live_line = False

    def keep(self, text: str) -> None:
        """Append the lines of a text to the log file, with the time. A full disk costs the log, not the run."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{now} {line}".rstrip() + "\n" for line in text.splitlines()]
        if self.log is None:
            self.early += lines
            return
        try:
            self.log.writelines(lines)
            self.log.flush()
        except OSError:
            self.log = None


_output = _Output()


def start_log(path: Path) -> None:
    """Append what this process has printed and logged so far to a file, and all that follows. Raises OSError."""
    log = path.open("a", encoding="utf-8")
    with _output.lock:
        log.writelines(_output.early)
        log.flush()
        _output.log = log
        _output.early.clear()


def stop_log() -> None:
    """Close the log file, and forget what was printed before it, so that another command begins a log of its own."""
    with _output.lock:
        if _output.log is not None:
            _output.log.close()
        _output.log = None
        _output.early.clear()


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


class _LogHandler(logging.StreamHandler[TextIO]):
    def __init__(self, role: str) -> None:
        super().__init__(sys.stderr)
        words = f"{role} %(levelname).1s %(message)s"
        self.setFormatter(_InertFormatter(f"%(asctime)s {words}", datefmt="%H:%M:%S"))
        self.filed = _InertFormatter(words)  # the log file has times of its own

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record below the lines on the screen, and into the log file."""
        with _output.lock:
            _output.erase()
            super().emit(record)
            _output.keep(self.filed.format(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record with line breaks where its stream is a terminal."""
        return _broken(super().format(record), self.stream)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose `__name__` is `name`."""
    return logging.getLogger(name)


def setup_logging(role: str = "driver") -> None:
    """Send the log records of our packages to stderr, with the time and the process's role.

    `role`: for example `driver`, `policy 0` or `engine 1`. The environment variable BRORL_LOG_LEVEL sets the level, by
    default INFO. Another call replaces the handler.
    """
    handler = _LogHandler(role)
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

    def note(self, text: str) -> None:
        """Write one line about progress to standard error."""
        write_error(f"{text}\n")

    def live(self, text: str) -> None:
        """Show a text as the last line of the terminal, until the next line is written. Its end is cut off."""
        text = inert(text)[: screen_width() - 1]
        with _output.lock:
            sys.stderr.write(f"{ERASE_LINE}{text}")
            sys.stderr.flush()
            _output.has_live_line = True

    def clear(self) -> None:
        """Remove the progress bar and the live line from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        with _output.lock:
            _output.erase()

    def line(self, text: str = "") -> None:
        """Write one line to standard output, after removing the progress bar. A terminal breaks it between words."""
        self.clear()
        write_words(f"{text}\n")

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
        header = list(map(inert_line, header))
        rows = [list(map(inert_line, row)) for row in rows]
        is_drawn_here = is_drawn(sys.stdout)
        width = screen_width() if sys.stdout.isatty() or "COLUMNS" in os.environ else sys.maxsize
        parts = fitted(header, rows, text_columns, width, DRAWN_GAP if is_drawn_here else GAP)
        if not parts:
            for text in records(header, rows, width):
                self.line(text)
        for number, (columns, cells) in enumerate(parts):
            if number:
                self.line()
            texts = [place for place, index in enumerate(columns) if index in text_columns]
            lines = format_table(cells[0], cells[1:], texts)
            if is_drawn_here:
                draw_table(cells[0], cells[1:], texts, styles or {})
                _output.keep("\n".join(lines))
                continue
            for text in lines:
                self.line(text)

    def _draw(self, text: str, done: int, total: int | None) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        text = inert(text)
        _output.erase()
        if self._bar is None:
            columns = (TextColumn("  {task.description}", markup=False), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=RichConsole(file=sys.stderr), transient=True, auto_refresh=False)
            self._bar.add_task(text, total=total)
            self._bar.start()
        [task] = self._bar.task_ids
        self._bar.update(task, description=text, completed=done, total=total, refresh=True)


def _broken(text: str, stream: TextIO) -> str:
    """Return a text with line breaks between words where its stream is a terminal."""
    return wrap(text, screen_width(), INDENT) if stream.isatty() else text


def screen_width() -> int:
    """Return the number of columns of the terminal, or `NARROW` when it does not say it."""
    return shutil.get_terminal_size((NARROW, 24)).columns


def draw_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    text_columns: Collection[int],
    styles: Mapping[str, str],
) -> None:
    """Draw a table on the terminal with rich; its cells fit the screen, and may have line breaks."""
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
    widths = [0] * len(header)
    broken = []
    for row in (header, *rows):
        broken.append([cell.split("\n") for cell in row])
        for index, lines_of_cell in enumerate(broken[-1]):
            widths[index] = max(widths[index], *map(len, lines_of_cell))
    blocks = []
    for row_cells in broken:
        block = []
        for texts in itertools.zip_longest(*row_cells, fillvalue=""):
            cells = []
            for index, text in enumerate(texts):
                cells.append(text.ljust(widths[index]) if index in text_columns else text.rjust(widths[index]))
            block.append("  ".join(cells).rstrip())
        blocks.append(block)
    whole = sum(widths) + GAP * (len(widths) - 1)
    rule = "-" * min(whole, MAX_RULE)
    return [*blocks[0], rule, *itertools.chain.from_iterable(blocks[1:])]
