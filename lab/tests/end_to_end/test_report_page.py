"""The page of `brorl report` and `brorl watch` in a real Chromium: every view, filters, keyboard, phone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import PHONE, missing, open_browser
from tests.support.watched_page import VIEWS, Watched, hostile_runs, put_report, texts, watch

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

NAMELESS = """() => {
    const named = 'input, select, button, [role=img], [role=region], table:not(.u-legend)';
    const isNamed = (element) => element.getAttribute('aria-label') || element.textContent.trim()
        || element.labels?.[0]?.textContent.trim();
    return [...document.querySelectorAll(named)].filter((element) => !isNamed(element)).map((one) => one.outerHTML);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return hostile_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(runs: list[Path]) -> str:
    return put_report(runs)


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Watched]:
    yield from watch(browser, address)


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Watched]:
    yield from watch(browser, address, PHONE, color_scheme="dark", has_touch=True)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_something_and_its_link_is_the_current_one(opened: Watched, view: str) -> None:
    page = opened.open(view)
    assert texts(page, "nav a[aria-current=page]") != []
    assert page.locator("main canvas, main td").count() >= 3
    assert "cannot be shown" not in page.inner_text("main")


@pytest.mark.parametrize("view", [*VIEWS, "group/0/4/0"])
def test_nothing_is_wider_than_a_phone(phone: Watched, view: str) -> None:
    page = phone.open(view)
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_curves_have_their_values_in_words_and_the_arrow_keys_read_them(opened: Watched) -> None:
    page = opened.open()
    panel = page.locator("figure", has=page.get_by_role("heading", name="Held-out pass@1 and pass@k")).locator(".plot")
    assert "first from 20.0 % at training step 0 to 70.0 % at 4" in panel.get_attribute("aria-label")
    panel.focus()
    page.keyboard.press("End")
    reading = page.locator("figure").first.locator(".reading")
    assert reading.inner_text().startswith("training step 4: first 70.0 % ± 2.0 %")
    page.keyboard.press("Home")
    assert reading.inner_text().startswith("training step 0")


def test_axes_hold_intervals_and_constant_shares_and_no_two_lines_look_alike(opened: Watched) -> None:
    page = opened.open()
    assert page.evaluate("yRange('share', [])(null, 1, 1)") == [0, 1], "and not from 100 to 200 %"
    assert page.evaluate("yRange('share', [0.25, 1.125])(null, 0.5, 0.9)") == [0, 1]
    low, high = page.evaluate("yRange('nats', [-2, 3])(null, 0, 1)")
    assert low < -2
    assert high > 3
    assert page.evaluate("powersOfTen(null, [0.001, 0.002, 0.01, 1, 5])") == [0.001, None, 0.01, 1, None]
    looks = page.evaluate("[...Array(45).keys()].map((one) => colour(one) + DASHES[one % DASHES.length])")
    assert len(set(looks)) == 45


def test_tokens_that_were_unlikely_are_marked_and_listed_with_their_log_probs(opened: Watched) -> None:
    page = opened.open("group/0/4/0")
    response = page.locator(".response").first
    mark = response.locator("span[title$=nats]").first
    assert float(mark.get_attribute("title").removesuffix(" nats")) < -0.3
    response.locator("summary").click()
    rows = texts(page, ".response:first-of-type details[open] tbody tr")
    values = [float(row.split("\t")[-1]) for row in rows]
    assert values == sorted(values)
    assert values[0] < -0.3


def test_a_chart_has_its_numbers_as_a_table(opened: Watched) -> None:
    page = opened.open()
    page.locator("figure details summary").first.click()
    assert "70.0 %" in page.locator("figure table[aria-label]").first.inner_text()


def test_any_metric_can_be_chosen(opened: Watched) -> None:
    page = opened.open()
    page.select_option("#any-metric", "policy/entropy")
    page.wait_for_selector("h3:has-text('policy/entropy')")
    assert "Entropy of the policy before the update" in page.inner_text("main")


def test_groups_are_filtered_sorted_and_turned_by_page(opened: Watched) -> None:
    page = opened.open("groups")
    status = page.locator("main p[role=status]")
    assert status.inner_text() == "80 groups, 1 to 50 shown"
    page.get_by_role("button", name="Next").click()
    assert status.inner_text() == "80 groups, 51 to 80 shown"
    page.get_by_label("From step").fill("4")
    assert status.inner_text() == "20 groups, 1 to 20 shown"
    page.get_by_role("button", name="right", exact=True).click()
    first = texts(page, "main tbody tr td:nth-child(3)")
    page.get_by_role("button", name="right ▾").click()
    assert texts(page, "main tbody tr td:nth-child(3)")[0] != first[0]
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("right")
    page.get_by_label("Right, at most %").fill("0")
    assert set(texts(page, "main tbody tr td:nth-child(5)")) <= {"all_wrong"}
    page.get_by_label("Prompt or task contains").fill("no such prompt")
    assert status.inner_text() == "No group passes these filters."
    page.get_by_role("button", name="Clear").click()
    assert page.locator("main p[role=status]").inner_text() == "80 groups, 1 to 50 shown"


def test_another_run_is_chosen(opened: Watched) -> None:
    page = opened.open("groups")
    page.get_by_label("Run", exact=True).select_option("1")
    page.wait_for_selector("text=16 groups, 1 to 16 shown")
    assert page.get_by_label("Run", exact=True).input_value() == "1"


def test_a_group_is_opened_by_the_keyboard_and_left_again(opened: Watched) -> None:
    page = opened.open("groups")
    page.locator("main td a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Group train/')")
    assert page.evaluate("document.activeElement.tagName") == "H2"
    page.get_by_role("link", name="All groups").click()
    page.wait_for_selector("h2:has-text('Groups')")


def test_the_first_tab_skips_to_the_content_of_the_view_that_is_open(opened: Watched) -> None:
    page = opened.open("groups")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#groups")
    assert page.locator("main[data-view=groups]").count() == 1


def test_tab_comes_to_the_rollouts_of_a_group_once_and_arrow_keys_go_through_them(opened: Watched) -> None:
    page = opened.open("group/0/4/0")
    buttons = page.locator(".grid button:enabled")
    assert buttons.count() == 12
    page.locator("summary", has_text="What the verifier was given").focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == buttons.first.get_attribute("aria-label")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == buttons.nth(1).get_attribute("aria-label")
    page.keyboard.press("End")
    assert page.evaluate(focused) == buttons.last.get_attribute("aria-label")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className") == "response"


def test_spans_of_a_step_are_drawn_read_and_chosen_by_process(opened: Watched) -> None:
    page = opened.open("timeline")
    assert "Step 4: 10.00 s. 13 lanes, 24 spans" in page.locator(".plot").get_attribute("aria-label")
    stages = texts(page, "table[aria-label='Stages of the driver'] tr")
    assert stages[1].split("\t") == ["collect", "6.000 s", "60.0 %"]
    page.locator(".plot").focus()
    page.keyboard.press("Home")
    assert "driver collect (6.000 s), engine 0 sample (4.000 s)" in page.locator(".reading").inner_text()
    page.get_by_role("combobox", name="Processes").select_option("engine")
    page.wait_for_selector(".plot[aria-label*='8 lanes, 8 spans']")
    page.get_by_role("combobox", name="Step").select_option("3")
    page.wait_for_selector("h3:has-text('Step 3')")


def test_kinds_of_spans_differ_by_a_pattern_in_one_process_and_by_colour_and_pattern_in_all(opened: Watched) -> None:
    """Of 40 kinds the driver has 16, as many as there are patterns, the ranks the others and two of the driver's."""
    page = opened.open("timeline")
    both = ["policy rank", "driver"]
    processes = {f"kind {number}": ["driver"] if number < 14 else ["policy rank"] for number in range(40)}
    processes |= {"kind 14": both, "kind 15": both}
    marks = page.evaluate("(of) => [...marksOf(Object.keys(of), new Map(Object.entries(of))).values()]", processes)
    assert len({mark["pattern"] for mark in marks[:16]}) == 16
    assert len({mark["pattern"] for mark in marks[14:30]}) == 16
    assert len({(mark["colour"], mark["pattern"]) for mark in marks}) == 40
    drawn = page.evaluate("PATTERNS.map((path, pattern) => swatch({ colour: 0, pattern }).toDataURL())")
    assert len(set(drawn)) == 16


def test_the_legend_of_a_timeline_names_the_kinds_of_each_process(opened: Watched) -> None:
    page = opened.open("timeline")
    assert texts(page, ".marks b") == ["driver", "engine", "verifier", "policy rank"]
    kinds = [text.split() for text in texts(page, ".marks div")]
    assert kinds == [["collect", "between", "update"], ["sample"], ["score"], ["mini-batch"]]


def test_of_many_lanes_every_process_has_some(opened: Watched) -> None:
    """Of 1 + 100 + 4 lanes 60 are drawn: the driver's, 55 of the engine and the rank's four."""
    page = opened.open("timeline")
    counts = {"driver": 1, "engine 0": 100, "policy rank 0": 4}
    rows = [{"row": [process, f"lane {lane}", 0]} for process, num in counts.items() for lane in range(num)]
    drawn = [row["row"][0] for row in page.evaluate("(rows) => someLanes(rows)", rows)]
    assert {process: drawn.count(process) for process in counts} == {"driver": 1, "engine 0": 55, "policy rank 0": 4}
    assert len(page.evaluate("(rows) => someLanes(rows)", rows[:60])) == 60


def test_settings_that_differ_are_shown_first_and_all_on_demand(opened: Watched) -> None:
    page = opened.open("settings")
    assert texts(page, "main tbody td:first-child") == ["trainer.seed"]
    page.get_by_label("only where the runs differ").uncheck()
    page.get_by_label("Name, value or meaning contains").fill("N in BroRL")
    assert texts(page, "main tbody td:first-child") == ["rollouts.num_per_prompt"]


def test_runs_are_compared_with_intervals(opened: Watched) -> None:
    page = opened.open("compare")
    rows = texts(page, "table[aria-label=Comparison] tbody tr")
    assert rows[0].split("\t")[:4] == ["first", "4", "70.0 %", "66.1 … 73.9 %"]
    assert rows[1].split("\t")[4:6] == ["+0.0 points", "−5.5 … +5.5 points"]


def test_dark_and_light_are_chosen_by_a_button(opened: Watched) -> None:
    page = opened.open()
    page.get_by_role("button", name="Dark or light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
    page.get_by_role("button", name="Dark or light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("view", [*VIEWS, "group/0/4/0"])
def test_every_control_and_chart_has_a_name(opened: Watched, view: str) -> None:
    page = opened.open(view)
    assert page.evaluate(NAMELESS) == []


@pytest.fixture
def served(runs: list[Path]) -> Iterator[str]:
    """The address that `brorl watch` prints."""
    command = [sys.executable, "-m", "nemo_brorl", "watch", str(runs[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_page_that_is_served_shows_what_the_run_writes_and_every_response(
    browser: Any, runs: list[Path], served: str
) -> None:
    for watched in watch(browser, served):
        page = watched.open()
        for view in VIEWS[:-1]:
            watched.open(view)
            assert "cannot be shown" not in page.inner_text("main")
        watched.open("group/0/4/0")
        assert page.locator(".response").count() == 12
        number = page.locator(".grid button:not(.has-text)").first
        number.click()
        page.locator(".response").nth(12).wait_for()
        watched.open("curves")
        with (runs[0] / "metrics.jsonl").open("a") as file:
            file.write('{"step": 5, "reward/mean": 0.875}\n')
        page.wait_for_selector(".card:has-text('0.875')")


def test_a_page_without_its_token_is_refused(browser: Any, served: str) -> None:
    page = browser.new_page()
    answer = page.goto(served[:-3] + "xyz")
    assert answer.status == 403
    assert "brorl watch" in page.inner_text("body")
    page.close()
