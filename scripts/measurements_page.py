"""Write docs/measurements.md from docs/measured/*.csv: two summary tables, then each study's header and table.

A file begins with lines `# key: value`, where `#   ` continues a value. Values are Markdown. The rows follow as CSV.
Lines `# claim: TEXT | NUMBER` and `# speed: TEXT | NUMBER` put the study into a summary table, one row for each line.
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
SUMMARIES = {  # key in a header: heading of its table, order of the studies
    "claim": (
        "What training has shown",
        "sums_training smollm2_training h100_loop n_sweep_warmed_up cipher_documents pool_stack mixture_training "
        "calculator campaign digits layouts fp8_on_cpu evaluation_check math_corpus instruction_checkers programs",
    ),
    "speed": (
        "How fast",
        "h100_generation h100_training h200_training h100_loop engine_host_time generation_pool generation_raw "
        "generation_grid policy_packing policy_throughput packed_rows checkpoint startup records",
    ),
}
MACHINE = re.compile(r"two cores|H\d00")  # begins the hardware of a study in a summary
SHOWN = ("setup", "hypothesis", "result", "caveat", "date", "revision", "hardware", "command", "seeds")
TITLE = re.compile(r"[A-Z][\w.,:-]*(?: \w[\w.,:-]*)*")  # GitHub and MkDocs make the same anchor of it
HEAD = """# Measurements

Made from `docs/measured/*.csv` by `make docs`; a test asserts that it is current.

Two tables sum up the claims and speeds. Each row links to its study, and quotes its date and command. A study is one
CSV file, whose header says when, where and how the numbers were measured, and has the caveats. "Two cores" are those of
a virtual machine with an AMD EPYC. "H100" and "H200" are one card. ± is an error or a 95 % interval, as the study says.
"Entered" is the day and the commit that first wrote a number down, where the run itself did not record them.
[Results](results.md) and [performance](performance.md) say what the numbers mean.
"""


@dataclass(frozen=True)
class Study:
    """One measured table with its header. The first row holds the names of the columns."""

    name: str
    header: dict[str, str]
    rows: list[list[str]]
    summaries: list[tuple[str, str]]  # key in `SUMMARIES`, and "TEXT | NUMBER"


def read_study(path: Path) -> Study:
    """Return the study that a CSV file holds.

    Raises ValueError for a missing or unknown key, a title that makes no plain anchor, rows of unequal length, and a
    summary that is not "TEXT | NUMBER" or whose hardware `MACHINE` does not know.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs: list[tuple[str, str]] = []
    for line in (line for line in lines if line.startswith("#")):
        if line.startswith("#   "):
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {line[4:].strip()}")
        else:
            key, _, value = line[2:].partition(": ")
            pairs.append((key, value.strip()))
    header = {key: value for key, value in pairs if key not in SUMMARIES}
    summaries = [(key, value) for key, value in pairs if key in SUMMARIES]
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    missing = [key for key in REQUIRED if not header.get(key)]
    unknown = sorted(header.keys() - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        raise ValueError(f"{path.name}: header lacks {missing}, and has unknown keys {unknown}")
    if not TITLE.fullmatch(header["title"]) or header["section"] not in SECTIONS:
        raise ValueError(f"{path.name}: title {header['title']!r} or section {header['section']!r} cannot be used")
    if len(rows) < 2 or len({len(row) for row in rows}) > 1:
        raise ValueError(f"{path.name}: no rows, or rows of unequal length: {[len(row) for row in rows]}")
    bad = [value for _, value in summaries if value.count(" | ") != 1]
    if bad:
        raise ValueError(f"{path.name}: claims and speeds must be TEXT | NUMBER: {bad}")
    if summaries and not MACHINE.match(header["hardware"]):
        raise ValueError(f"{path.name}: hardware {header['hardware']!r} of a summary must match {MACHINE.pattern}")
    return Study(path.stem, header, rows, summaries)


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


def summary_table(key: str, studies: list[Study]) -> list[str]:
    """Return the lines of a summary table. Its rows link to their studies and quote their date and command."""
    heading, order = SUMMARIES[key]
    places = {name: place for place, name in enumerate(order.split())}
    lines = [f"## {heading}", "", f"| {key} | number | hardware, date | command |", "|---|---|---|---|"]
    for study in sorted(studies, key=lambda study: places.get(study.name, len(places))):
        header = study.header
        anchor = re.sub(r"[^\w -]", "", header["title"]).lower().replace(" ", "-")
        for text, number in (row.split(" | ") for name, row in study.summaries if name == key):
            machine = MACHINE.findall(header["hardware"])[0]
            lines.append(f"| [{text}](#{anchor}) | {number} | {machine}, {header['date']} | {header['command']} |")
    return [*lines, ""]


def page() -> str:
    """Return the whole page: summaries, then sections in the order of `SECTIONS`, studies by title."""
    studies = sorted((read_study(path) for path in STUDIES.glob("*.csv")), key=lambda study: study.header["title"])
    lines = [HEAD]
    for key in SUMMARIES:
        lines += summary_table(key, studies)
    for section in SECTIONS:
        lines += [f"## {section}", ""]
        for study in studies:
            if study.header["section"] == section:
                lines += section_of(study)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
