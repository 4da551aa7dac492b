"""What the pages show: their code blocks, and the commands of a block of shell, in the order of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.source_tree import ROOT

FENCE = re.compile(r"^( *)```(\w*)\s*$")
INDENTED = re.compile(r"^ {4}\S")
USAGE = re.compile(r"^# {2,}(sbatch .*?)(?: {2,}.*)?$")  # in the first comment of a script of slurm/
TOKEN = re.compile(
    r"""'[^']*'|"(?:[^"\\]|\\.)*"|(?P<joined>\\\n)|(?P<comment>(?<!\S)\#[^\n]*)|(?P<end>\n|&&)|.""", re.DOTALL
)
FILES = ("python", "yaml", "sql")  # blocks that a reader saves and uses as a file


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str  # relative to the repository
    line: int  # of its first line of text
    language: str  # empty: something that is printed
    text: str


@dataclass(frozen=True)
class Command:
    """A command as a page shows it, or a block that is saved as a file."""

    page: str
    line: int
    text: str
    is_file: bool = False

    @property
    def place(self) -> str:
        """Where it stands, as editors and terminals link it."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """The pages whose commands are run: README first, as a new user reads them."""
    names = ("tutorials/first_run", "tutorials/your_model", "tutorials/first_cluster_job")
    read_first = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in names)]
    others = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md"))]
    return [*read_first, *(page for page in others if page not in read_first)]


def scripts() -> list[Path]:
    """The scripts whose usage lines are run."""
    return sorted((ROOT / "slurm").glob("*.sh"))


def shown_commands() -> list[Command]:
    """All commands, page by page."""
    commands: list[Command] = []
    for page in pages():
        for block in blocks_of(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()):
            if block.language == "bash":
                commands += commands_of(block)
            elif block.language in FILES:
                commands.append(Command(block.page, block.line, block.text, is_file=True))
    for script in scripts():
        for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
            if found := USAGE.match(line):
                commands.append(Command(script.relative_to(ROOT).as_posix(), number, found.group(1)))
    return commands


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """Fenced blocks, and indented ones outside of lists, which count as shell."""
    lines = text.splitlines()
    number, in_list = 0, False
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence:
            first, number = number + 1, number + 1
            while not FENCE.match(lines[number]):
                number += 1
            yield Block(page, first + 1, fence[2], dedented(lines[first:number], len(fence[1])))
        elif INDENTED.match(lines[number]) and not in_list:
            first = number
            while number < len(lines) and INDENTED.match(lines[number]):
                number += 1
            yield Block(page, first + 1, "bash", dedented(lines[first:number], 4))
            continue
        elif lines[number].strip():
            in_list = bool(re.match(r"^ *([-*]|\d+\.) ", lines[number])) or (in_list and lines[number][0] == " ")
        number += 1


def dedented(lines: list[str], width: int) -> str:
    """The lines without the block's own indentation."""
    return "\n".join(line[width:] if not line[:width].strip() else line for line in lines)


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a block of shell: a line or several, split at `&&`, without comments."""
    for line, text in split(block.text):
        yield Command(block.page, block.line + line, text)


def split(script: str) -> Iterator[tuple[int, str]]:
    """Pairs of a line, counted from 0, and the command that starts there."""
    command, start = "", 0
    for token in TOKEN.finditer(f"{script}\n"):
        if token.lastgroup == "end":
            if command.strip():
                yield start, command.strip()
            command = ""
        elif token.lastgroup != "comment":
            if not command.strip():
                start = script.count("\n", 0, token.start())
            command += " " if token.lastgroup == "joined" else token.group()


def as_one_line(text: str) -> str:
    """A command with each run of blanks as one, as the table has it."""
    return " ".join(text.split())
