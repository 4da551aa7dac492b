"""Write docs/measurements.md from docs/measured/*.csv: each study's heading, header and table.

A file begins with lines `# key: value`, where `#   ` continues a value. Values are Markdown. The rows follow as CSV.
`make docs` runs this script, and a test asserts that the page is current.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "docs" / "measured"
PAGE = ROOT / "docs" / "measurements.md"
SECTIONS = (
    "Training runs on CPU",
    "Size of a group",
    "Rare successes: cipher chains",
    "Settings and numerics",
    "Environments and graders",
    "Faults and long runs",
    "Speed and memory on two CPU cores",
    "One GPU",
    "Plans and simulated clusters",
    "Theory",
)
REQUIRED = ("title", "section", "date", "revision", "hardware", "command", "seeds", "hypothesis", "caveat")
OPTIONAL = ("setup", "result")
SHOWN = ("setup", "hypothesis", "result", "caveat", "date", "revision", "hardware", "command", "seeds")
TITLE = re.compile(r"[A-Z][\w.,:-]*(?: \w[\w.,:-]*)*")  # GitHub and MkDocs make the same anchor of it
HEAD = """# Measurements

Made from `docs/measured/*.csv` by `make docs`; a test asserts that it is current.

Each study is one CSV file. Its header says when, where and how the numbers were measured, and what speaks against them.
"Entered" is the day and the commit that first wrote a number down, where the run itself did not record them.
[Results](results.md) and [performance](performance.md) say what the numbers mean.
"""


@dataclass(frozen=True)
class Study:
    """One measured table with its header. The first row holds the names of the columns."""

    name: str
    header: dict[str, str]
    rows: list[list[str]]


def read_study(path: Path) -> Study:
    """Return the study that a CSV file holds.

    Raises ValueError for a missing or unknown key, a title that makes no plain anchor, and rows of unequal length.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    header: dict[str, str] = {}
    key = ""
    for line in (line for line in lines if line.startswith("#")):
        if line.startswith("#   "):
            header[key] += f" {line[4:].strip()}"
        else:
            key, _, value = line[2:].partition(": ")
            header[key] = value.strip()
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    missing = [key for key in REQUIRED if not header.get(key)]
    unknown = sorted(header.keys() - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        raise ValueError(f"{path.name}: header lacks {missing}, and has unknown keys {unknown}")
    if not TITLE.fullmatch(header["title"]) or header["section"] not in SECTIONS:
        raise ValueError(f"{path.name}: title {header['title']!r} or section {header['section']!r} cannot be used")
    if len(rows) < 2 or len({len(row) for row in rows}) > 1:
        raise ValueError(f"{path.name}: no rows, or rows of unequal length: {[len(row) for row in rows]}")
    return Study(path.stem, header, rows)


def shown_cell(text: str, unit: str) -> str:
    """Return a cell as the page shows it: thousands with commas, and the unit of its column after a number."""
    if re.fullmatch(r"\d{4,}", text):
        text = f"{int(text):,}"
    return f"{text} {unit}" if unit and re.match(r"[+−-]?\d", text) else text.replace("|", "\\|")


def section_of(study: Study) -> list[str]:
    """Return the lines of a study. A column named "X, %" is shown as "X", with the unit in its cells."""
    names, *rows = study.rows
    units = ["%" if name.endswith(", %") else "" for name in names]
    lines = [f"### {study.header['title']}", ""]
    lines += [f"- **{key.capitalize()}**: {study.header[key]}" for key in SHOWN if key in study.header]
    lines += [f"- **Data**: [{study.name}.csv](measured/{study.name}.csv)", ""]
    lines += [f"| {' | '.join(name.removesuffix(', %') for name in names)} |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [shown_cell(text, unit) for text, unit in zip(row, units, strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def page() -> str:
    """Return the whole page: sections in the order of `SECTIONS`, studies by title."""
    studies = sorted((read_study(path) for path in STUDIES.glob("*.csv")), key=lambda study: study.header["title"])
    lines = [HEAD]
    for section in SECTIONS:
        lines += [f"## {section}", ""]
        for study in studies:
            if study.header["section"] == section:
                lines += section_of(study)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
