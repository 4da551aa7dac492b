"""Console output: plain lines in a file, drawn by rich on a terminal."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_brorl.__main__ import show_bug
from nemo_brorl.core.console import (
    LOGGED,
    Console,
    format_table,
    get_logger,
    setup_logging,
    start_log,
    stop_log,
    without_colours,
    write_error,
)

HEADER = ("stage", "seconds", "how")
ROWS = (("generate", "10.5", "by engines"), ("all", "120.0", ""))


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_columns_of_text_begin_at_the_left_and_numbers_end_at_the_right() -> None:
    assert format_table(HEADER, ROWS, text_columns=(0, 2)) == [
        "stage     seconds  how",
        "-" * (8 + 2 + 7 + 2 + 10),
        "generate     10.5  by engines",
        "all         120.0",
    ]


def test_a_rule_is_not_wider_than_a_page() -> None:
    assert len(format_table(["name"], [["x" * 500]])[1]) == 120


def test_a_table_in_a_file_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    Console().table(HEADER, ROWS, text_columns=(0, 2))
    assert capsys.readouterr().out.splitlines() == format_table(HEADER, ROWS, (0, 2))


def test_a_terminal_shows_the_same_cells_and_a_style_where_one_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setitem(os.environ, "TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    Console().table(("check", "status"), [("disk", "fail")], styles={"fail": "red"})
    written = sys.stdout.getvalue()  # type: ignore[attr-defined]  # the stream above
    assert "\x1b[31m  fail\x1b[0m" in written
    assert "disk" in written


def test_no_colour_means_plain_lines_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    console = Console()
    console.last_shown = -10.0  # long ago
    console.progress("generate", 5, 10, "rollouts", 2.0)
    console.table(HEADER, ROWS)
    assert "\x1b" not in sys.stdout.getvalue() + sys.stderr.getvalue()  # type: ignore[attr-defined]  # as above
    assert "  generate: 5/10 rollouts, 2 rollouts/s\n" in sys.stderr.getvalue()  # type: ignore[attr-defined]  # as above


def test_progress_on_a_terminal_is_gone_before_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setitem(os.environ, "TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    console = Console()
    console.stage("update")
    console.last_shown = -10.0
    console.progress("generate", 5, 10, "rollouts", 2.0)
    console.line("step 1")
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]  # the stream above
    assert "generate: 5/10 rollouts, 2 rollouts/s" in written
    assert written.endswith("\x1b[2K")  # the line was erased


@pytest.fixture
def _own_logging() -> Iterator[None]:
    loggers = [logging.getLogger(package) for package in LOGGED]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagates) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.level, logger.propagate = handlers, level, propagates


EVIL = "\x1b]0;evil\x07\x1b[2J\u202e"
SHOWN = "\\x1b]0;evil\\x07\\x1b[2J\\u202e"


@pytest.mark.usefixtures("_own_logging")
def test_what_strangers_wrote_reaches_no_terminal_as_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    console.line(EVIL)
    console.table([EVIL], [[f"a{EVIL}\nb"]])
    write_error(f"error: {EVIL}\n")
    console.last_shown = -10.0  # long ago
    console.progress(EVIL, 1, 2, "rows", 1.0)
    setup_logging()
    get_logger("brorl_lab.x").warning("%s\n%s", EVIL, "next line")
    written = capsys.readouterr()
    assert written.out.splitlines() == [SHOWN, SHOWN, "-" * (len(SHOWN) + 4), f"a{SHOWN}\\nb"]
    assert written.err.count(SHOWN) == 3
    assert written.err.endswith(f"{SHOWN}\nnext line\n")


def test_a_styled_table_and_a_bar_show_text_and_obey_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setitem(os.environ, "TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    console = Console()
    console.table(("name",), [(EVIL,), ("fail",)], styles={"fail": "red"})
    console.stage(EVIL)
    console.clear()
    written = sys.stdout.getvalue() + sys.stderr.getvalue()  # type: ignore[attr-defined]  # the streams above
    assert "\x1b]0" not in written
    assert "\x07" not in written
    assert "\u202e" not in written
    assert "\x1b[31mfail" in written


def test_a_bug_that_quotes_a_stranger_is_shown_inert(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        show_bug(type(error), error, error.__traceback__)
    assert f"ValueError: {SHOWN}" in capsys.readouterr().err


def test_colours_of_a_log_are_left_out() -> None:
    assert without_colours("\x1b[36m(engine)\x1b[0m \x1b[1;31mx\x1b[2J") == "(engine) x\x1b[2J"


@pytest.mark.usefixtures("_own_logging")
def test_a_log_file_has_what_was_printed_and_logged_also_before_it_was_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_log()
    setup_logging()
    console = Console()
    console.line("chosen: two engines")
    start_log(tmp_path / "log.txt")
    get_logger("nemo_brorl.x").warning("late")
    console.table(("name",), [(EVIL,)])
    stop_log()
    console.line("another command")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    shown = [line[20:] for line in lines if "late" not in line]
    assert shown == ["chosen: two engines", "name", "-" * len(SHOWN), SHOWN]
    assert sum("driver W late" in line for line in lines) == 1
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert capsys.readouterr().out.count("chosen") == 1


def test_a_live_line_is_erased_before_the_next_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    console = Console()
    console.live("engines 31 s" + "x" * 40)
    console.live(EVIL)
    write_error("error\n")
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]  # the stream above
    assert written.startswith("\r\x1b[2Kengines 31 sxxxxxxx\r\x1b[2K")
    assert SHOWN[:19] in written
    assert written.endswith("\r\x1b[2Kerror\n")
