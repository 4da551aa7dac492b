"""What README, tutorials, how-to pages and the scripts of slurm/ show works in a clone that has been used.

make test-commands ARGS="-k first_run"
"""

from __future__ import annotations

import pytest

from tests.documented_commands.pages import Command, as_one_line, shown_commands
from tests.documented_commands.table import RUN, rows_of
from tests.documented_commands.used_clone import UsedClone

SHOWN = shown_commands()
IS_RUN = [command for command in SHOWN if any(row.is_run for row in rows_of(command))]


def identifier(command: Command) -> str:
    """Where a command is shown, and its beginning."""
    return f"{command.place} {as_one_line(command.text)[:60]}"


@pytest.mark.parametrize("command", IS_RUN, ids=identifier)
def test_what_a_page_shows_works_in_a_used_clone(command: Command, clone: UsedClone) -> None:
    (row,) = rows_of(command)
    text = row.as_run(command)
    if row.save_as:
        path = clone.folder / row.save_as
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{row.head}{command.text}\n")
    if RUN in text and not row.once:
        train(clone)
    outcome = clone.run(row, text, command.page.replace("/", "_"))
    is_there = not row.leaves or (clone.folder / row.leaves).exists()
    is_said = row.says in outcome.output
    if outcome.code or not is_there or not is_said or "Traceback (most recent call last)" in outcome.output:
        missing = f"there is no {row.leaves}" if not is_there else "" if is_said else f"does not say {row.says!r}"
        end = "\n".join(outcome.output.splitlines()[-60:])
        shown = f"{command.place} shows: {command.text}\nrun as: {text}"
        pytest.fail(f"{shown}\nexit code {outcome.code} {missing}\n{end}", pytrace=False)


def train(clone: UsedClone) -> None:
    """Make the run that the pages share, as README does."""
    (command,) = [command for command in SHOWN if command.page == "README.md" and command.text == "make train"]
    (row,) = rows_of(command)
    assert clone.run(row, row.as_run(command), "README.md").code == 0
