"""Fit tables of text cells into the width of a screen, without breaking a word.

Cells and headers are wrapped between words. If that is not enough, a table becomes several ones that repeat its first
column. If a name alone takes most of the width, every row becomes a few lines of `header cell`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence

# Texts with a space before and after that belong to one value, such as an interval.
BINDERS = ("…", "±")
COLUMNS = re.compile(r"( *)(\S+(?: \S+)*  +(?=\S))?")  # matches the indentation of a line, and its first column
COMMAND = re.compile(r" +brorl \S")

Cells = Sequence[str]


def fitted(
    header: Cells, rows: Sequence[Cells], text_columns: Collection[int], width: int, gap: int
) -> list[tuple[list[int], list[list[str]]]]:
    """Return a table as parts: indices of the columns, and header and rows with line breaks in their cells.

    A part is at most `width` characters wide with `gap` characters between columns. Returns no part if that is not
    possible without breaking words.
    """
    table = [header, *rows]
    least = [_least_width(table, index, index in text_columns) for index in range(len(header))]
    groups = _groups(least, width, gap)
    if len(groups) > 1 and least[0] > width // 2:
        return []
    parts = []
    for columns in groups:
        widths = []
        for index in columns:
            widths.append(max(len(row[index]) for row in table))
        room = width - gap * (len(columns) - 1)
        while sum(widths) > room:
            spare = [place for place, index in enumerate(columns) if widths[place] > least[index]]
            if not spare:
                return []
            widths[max(spare, key=widths.__getitem__)] -= 1
        wrapped = []
        for row in table:
            wrapped.append([wrap(row[index], widths[place]) for place, index in enumerate(columns)])
        parts.append((columns, wrapped))
    return parts


def _groups(least: Sequence[int], width: int, gap: int) -> list[list[int]]:
    groups = [[0]]
    for index in range(1, len(least)):
        taken = sum(least[other] + gap for other in groups[-1])
        if taken + least[index] > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    return groups


def _least_width(table: Sequence[Cells], index: int, is_text: bool) -> int:
    header, *cells = (row[index] for row in table)
    unbroken = [*_words(header)]
    for cell in cells:
        unbroken += _words(cell) if is_text else [cell]
    return max(map(len, unbroken), default=0)


def _words(cell: str) -> list[str]:
    first, *others = _bound(cell.lstrip(" ")).split(" ")
    return [cell[: len(cell) - len(cell.lstrip(" "))] + first, *others]


def _bound(cell: str) -> str:
    for sign in BINDERS:
        cell = cell.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    return cell


def wrap(text: str, width: int, indent: str = "") -> str:
    """Return a text with line breaks between words, so that its lines have at most `width` characters if possible.

    With an `indent`, the rest of a line begins below its second column, or else with its own indentation and `indent`.
    A line that is a command of `brorl` stays one for a shell.
    """
    if len(text) <= width:
        return text
    lines = []
    for line in text.split("\n"):
        lines.append(_wrapped(line, width, indent) if len(line) > width else line)
    return "\n".join(lines)


def _wrapped(line: str, width: int, indent: str) -> str:
    start, first_column = COLUMNS.match(line).groups("")  # type: ignore[union-attr]
    line_end = " \\\n" if indent and not first_column and COMMAND.match(line) else "\n"
    below = start + " " * len(first_column)
    if not first_column or len(below) > width * 2 // 3:
        below = start + indent
    wrapper = textwrap.TextWrapper(
        width - len(line_end) + 1,
        subsequent_indent=indent and below,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return line_end.join(wrapper.wrap(_bound(line))).replace("\u00a0", " ")


def records(header: Cells, rows: Sequence[Cells], width: int) -> Iterator[str]:
    """Yield the lines of a table whose rows are too wide: the first cell, then the others with their headers."""
    for name, *cells in rows:
        yield name
        pairs = [f"{title} {cell}" for title, cell in zip(header[1:], cells, strict=True) if cell.strip()]
        line = ""
        for pair in pairs:
            if line and len(line) + 2 + len(pair) > width:
                yield line
                line = ""
            line += f"  {pair}"
        if line:
            yield line
