"""A page of `brorl report` or `brorl watch` in Chromium: anything but its own requests, and every word on the console,
is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brorl_lab.page.page import render_report
from brorl_lab.page.runs import open_runs

from tests.support.browser import WINDOW
from tests.support.run_folders import HOSTILE, put_run, put_timeline

VIEWS = ("curves", "prompts", "groups", "timeline", "settings", "compare")
READY = "html[data-ready=yes]"
LONG_NAME = "second_of_two_runs_whose_name_is_longer_than_a_phone_is_wide_and_has_no_blank"


@dataclass
class Watched:
    """A page and what it did."""

    page: Any
    address: str
    trouble: list[str] = field(default_factory=list)

    def open(self, view: str = "curves") -> Any:
        self.page.goto(f"{self.address}#{view}")
        self.page.wait_for_selector(READY)
        self.page.wait_for_selector(f"main[data-view='{view}']")
        return self.page


def watch(browser: Any, address: str, window: dict[str, int] = WINDOW, **options: Any) -> Iterator[Watched]:
    """The page in a window of its own. Fails at the end where there was trouble."""
    context = browser.new_context(viewport=window, **options)
    page = context.new_page()
    watched = Watched(page, address)
    own = address.partition("?")[0]

    def look(request: Any) -> None:
        if not request.url.startswith((own, "data:,")):
            watched.trouble.append(f"asked for {request.url}")

    page.on("request", look)
    page.on("dialog", lambda dialog: (watched.trouble.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: watched.trouble.append(str(error)))
    page.on("console", lambda message: watched.trouble.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(20_000)
    yield watched
    context.close()
    assert watched.trouble == []


def texts(page: Any, selector: str) -> list[str]:
    """Of all elements that are there."""
    return page.locator(selector).all_inner_texts()


def hostile_runs(folder: Path) -> list[Path]:
    """Two runs, the first of a model that attacks the page."""
    first = put_run(folder / "first", num_steps=4, prompts=20, responses=HOSTILE, task=HOSTILE[0])
    put_timeline(first, 3)
    put_timeline(first, 4)
    second = put_run(folder / LONG_NAME, num_steps=4, prompts=4, size=4, seed=1)
    return [first, second]


def put_report(runs: list[Path]) -> str:
    """Address of their report."""
    path = runs[0].parent / "report.html"
    path.write_text(render_report(open_runs(runs), max_mib=5))
    return path.as_uri()
