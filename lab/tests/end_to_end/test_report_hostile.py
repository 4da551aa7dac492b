"""What a hostile model wrote, in a real Chromium: it is text in every view, and acts in none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import PHONE, missing, open_browser
from tests.support.run_folders import put_run
from tests.support.watched_page import LONG_NAME, Watched, hostile_runs, put_report, texts, watch

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return put_report(hostile_runs(tmp_path_factory.mktemp("runs")))


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Watched]:
    yield from watch(browser, address)


def test_what_a_model_wrote_is_text_and_marks_are_named(opened: Watched) -> None:
    page = opened.open("group/0/4/0")
    said = "\n".join(texts(page, ".response .said"))
    assert "<svg/onload=alert(4)>" in said
    for row in range(20):
        opened.open(f"group/0/4/{row}")
        said += "\n".join(texts(page, ".response .said, .message .said"))
        assert page.locator("main script, main img, main svg, main iframe, main meta, main style").count() == 0
        assert "\u202e" not in page.inner_text("main")
        assert "\x1b" not in page.inner_text("main")
    assert "<script>document.title='taken'</script>" in said
    for name in ("ESC", "NUL", "BEL", "U+202E", "U+2066", "U+200B"):
        assert name in said
    assert page.title() == f"BroRL: first and {LONG_NAME}"


def test_scores_of_the_parts_of_a_reward_stand_with_each_response_and_in_the_table(opened: Watched) -> None:
    page = opened.open("group/0/4/0")
    assert "verifier: exact_match 1; format 0.5 <script>document" in "\n".join(texts(page, ".response .facts"))
    page.locator("summary", has_text="Table of 16 rollouts").click()
    # The page fills the table once it is open.
    page.locator("table[aria-label=Rollouts] tbody tr").nth(15).wait_for()
    rows = texts(page, "table[aria-label=Rollouts] tbody tr")
    assert len(rows) == 16
    assert all(row.split("\t")[-1].startswith(f"exact_match {row.split()[1]}; format 0.5 <script>") for row in rows)
    assert page.locator("main script, main img").count() == 0


def test_a_name_of_a_task_is_text_in_lists_and_tables(opened: Watched) -> None:
    page = opened.open("groups")
    assert "<script>document.title" in page.locator("main tbody tr").first.inner_text()
    assert page.locator("main img").count() == 0


def test_lines_of_a_megabyte_are_bounded(browser: Any, tmp_path: Path) -> None:
    line = "x" * 1_000_000
    run = put_run(tmp_path / "long", num_steps=1, prompts=2, size=2, responses=(line, line))
    address = put_report([run])
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    for watched in watch(browser, address, PHONE):
        page = watched.open("group/0/1/0")
        assert "998,801 tokens are left out here" in page.inner_text(".response")
        assert "more characters" in page.inner_text(".message")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
