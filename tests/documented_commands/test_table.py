"""The reader of pages, and the table: each command and each row have one another."""

from __future__ import annotations

from tests.documented_commands.pages import Command, blocks_of, commands_of, shown_commands, split
from tests.documented_commands.table import TABLE, Row, rows_of

PAGE = """
Text with `code`.

```bash
# why
A=1 make train   # in ten minutes
brorl try --x "a # b" \\
    y=2 && cd 'a && b'
F="one
   two"
```

- a list
  of two lines

    of which this is the second part

Text.

    python -m server

```
printed
```
"""


def test_a_page_has_fenced_and_indented_blocks() -> None:
    found = [(block.line, block.language, block.text.splitlines()[0]) for block in blocks_of(PAGE, "page.md")]
    assert found == [(5, "bash", "# why"), (20, "bash", "python -m server"), (23, "", "printed")]


def test_commands_are_split_outside_of_quotes_and_have_no_comments() -> None:
    block = next(blocks_of(PAGE, "page.md"))
    assert [(command.line, " ".join(command.text.split())) for command in commands_of(block)] == [
        (6, "A=1 make train"),
        (7, 'brorl try --x "a # b" y=2'),
        (8, "cd 'a && b'"),
        (9, 'F="one two"'),
    ]
    assert list(split("")) == []


def test_words_that_a_reader_replaces_have_values_and_longer_words_keep_their_letters() -> None:
    row = Row("brorl replay RUN *", values={"--step 40": "--step 2"}, add="x=1")
    command = Command("page.md", 1, "brorl replay RUN --step 40 policy.model=MODEL RUNNER")
    assert row.matches(command)
    assert row.as_run(command) == "brorl replay runs/sums_cpu --step 2 policy.model=models/sums RUNNER x=1"


def test_every_command_and_every_block_of_a_page_has_one_row() -> None:
    wrong = {command.place: len(rows_of(command)) for command in shown_commands() if len(rows_of(command)) != 1}
    assert wrong == {}


def test_every_row_is_about_a_command_that_a_page_shows() -> None:
    shown = shown_commands()
    assert [row.shown for row in TABLE if not any(row.matches(command) for command in shown)] == []


def test_every_row_that_changes_a_command_says_why() -> None:
    changed = [row for row in TABLE if row.add or not row.is_run or (row.instead and not row.save_as)]
    assert [row.shown for row in changed if not row.why] == []
