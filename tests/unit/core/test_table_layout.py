"""Tables fit a narrow screen, and no word or value is broken."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from nemo_brorl.core.console import Console, get_logger, setup_logging, start_log, stop_log, without_colours
from nemo_brorl.core.table_layout import wrap
from tests.unit.core.test_console import Terminal

SCORES = ["benchmark", "prompts", "n", "pass@1", "s.e.", "95% interval", "pass@2", "tokens", "truncated", "no answer"]
AIME = ["mean of benchmarks", "30", "16", "72.8%", "1.2%", "70.1 … 75.2", "80.0%", "1,120.1", "1.0%", "2.0%"]
RUN = ["/shared/a_long_folder/of_a_group/runs/one", "finished", "20/20", "72.8% ± 2.3%", "3 h ago"]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize(
    ("header", "row"), [(SCORES, AIME), (["run", "state", "step", "pass@1", "last update"], RUN)], ids=["scores", "run"]
)
def test_every_line_fits_and_every_word_is_whole(
    header: list[str], row: list[str], is_terminal: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    if not is_terminal:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setitem(os.environ, "TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    Console().table(header, [row, row])
    lines = without_colours(sys.stdout.getvalue()).splitlines()  # type: ignore[attr-defined]  # the stream above
    written = " ".join(lines)
    assert max(map(len, lines)) <= max(width, *map(len, row[0].split()))
    for value in row[1:]:
        assert value in written
    for word in " ".join([*header, row[0]]).split():
        assert word in written


def test_a_wide_screen_and_a_file_have_one_row_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    Console().table(SCORES, [AIME])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_value_with_its_error_is_not_divided() -> None:
    assert wrap("earned 72.8% ± 2.3% then", 15) == "earned\n72.8% ± 2.3%\nthen"
    assert wrap("unbreakable", 4) == "unbreakable"


def test_a_line_is_broken_between_words_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    Console().line("chosen: two engines (of the memory that is free)")
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setattr(sys, "stdout", Terminal())
    Console().line("chosen: two engines (of the memory that is free)")
    written = sys.stdout.getvalue()  # type: ignore[attr-defined]  # the stream above
    assert written == "chosen: two engines (of the\n    memory that is free)\n"


def test_a_log_record_is_broken_on_a_terminal_and_whole_in_the_log_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    start_log(tmp_path / "log.txt")
    setup_logging()
    try:
        get_logger("nemo_brorl.toy").info("engine 0 has the lean scheduler")
    finally:
        stop_log()
    assert max(map(len, screen.getvalue().splitlines())) <= 40
    assert screen.getvalue().count("\n") == 2
    logged = (tmp_path / "log.txt").read_text()
    assert re.search(r"^\S+ \d\d:\d\d:\d\d driver I engine 0 has the lean scheduler$", logged, re.M), "one time a line"


def test_the_rest_of_a_line_begins_below_its_second_column() -> None:
    assert wrap("  try    show what a model answers", 24, "    ") == "  try    show what a\n         model answers"
    # A first column of most of the width leaves no room.
    assert wrap("  a_first_column  of text", 20, "    ") == "  a_first_column  of\n      text"


def test_a_command_that_is_broken_stays_one_for_a_shell() -> None:
    text = "  brorl train --config-name your_model policy.model=MODEL"
    assert wrap(text, 40, "    ") == "  brorl train --config-name your_model \\\n      policy.model=MODEL"
    assert all(len(line) <= 40 for line in wrap(text, 40, "    ").splitlines())
