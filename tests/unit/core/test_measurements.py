"""Every measured study has a complete header, and the page of measurements is made from the studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.measurements_page import PAGE, REQUIRED, STUDIES, SUMMARIES, page, read_study, section_of, summary_table

FILES = sorted(STUDIES.glob("*.csv"))
HEADER = "".join(f"# {key}: Plain words\n" for key in REQUIRED).replace("section: Plain words", "section: Theory")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_study_has_its_header_and_rows_of_equal_length(path: Path) -> None:
    study = read_study(path)
    assert all(study.header[key] for key in REQUIRED)


def test_titles_differ_so_that_links_find_one_study() -> None:
    titles = [read_study(path).header["title"].lower() for path in FILES]
    assert sorted(set(titles)) == sorted(titles)


def test_the_page_of_measurements_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_cells_are_shown_with_unit_and_commas(tmp_path: Path) -> None:
    path = tmp_path / "small.csv"
    path.write_text(f'{HEADER}rollouts,"pass@1, %"\n307200,35.0 ± 13.8\nall,\n', encoding="utf-8")
    assert section_of(read_study(path))[-5:-1] == [
        "| rollouts | pass@1 |",
        "|---|---|",
        "| 307,200 | 35.0 ± 13.8 % |",
        "| all |  |",
    ]


def test_each_claim_of_a_study_is_a_row_of_the_summary_that_links_to_the_study(tmp_path: Path) -> None:
    path = tmp_path / "small.csv"
    header = HEADER.replace("hardware: Plain words", "hardware: H100 of 80 GB").replace(
        "title: Plain", "title: H100: plain"
    )
    claims = "# claim: It learns | 1 %\n# speed: Sampling | 2 ×\n# claim: It\n#   forgets | **not\n#   shown**\n"
    path.write_text(f"{header}{claims}a\n1\n", encoding="utf-8")
    assert summary_table("claim", [read_study(path)]) == [
        "## What training has shown",
        "",
        "| claim | number | hardware, date | command |",
        "|---|---|---|---|",
        "| [It learns](#h100-plain-words) | 1 % | H100, Plain words | Plain words |",
        "| [It forgets](#h100-plain-words) | **not shown** | H100, Plain words | Plain words |",
        "",
    ]


def test_every_study_that_a_summary_orders_has_a_row_there() -> None:
    summaries = {path.stem: {key for key, _ in read_study(path).summaries} for path in FILES}
    without = [name for key, (_, order) in SUMMARIES.items() for name in order.split() if key not in summaries[name]]
    assert without == []


def test_the_summary_says_that_a_large_n_has_not_beaten_a_small_one() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| [N = 512 beats N = 16 at equal samples]")]
    assert len(rows) == 1
    assert "**not shown**" in rows[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER.replace("# caveat: Plain words\n", "") + "a,b\n1,2\n", "lacks \\['caveat'\\]"),
        (HEADER + "# mood: good\na,b\n1,2\n", "unknown keys \\['mood'\\]"),
        (HEADER + "a,b\n1,2,3\n", "unequal length: \\[2, 3\\]"),
        (HEADER.replace("title: Plain words", "title: N = 16") + "a\n1\n", "title 'N = 16'"),
        (HEADER + "# claim: It learns | 1 %\na\n1\n", "hardware 'Plain words' of a summary"),
        (HEADER.replace("hardware: Plain", "hardware: H100") + "# claim: It learns\na\n1\n", "TEXT | NUMBER"),
    ],
)
def test_a_study_without_header_or_with_ragged_rows_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "small.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_study(path)
