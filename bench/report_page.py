"""How large a report is, how long it takes to write, and how fast it opens in Chromium, at 200 steps of 8,192 rollouts.

    .venv/bin/python bench/report_page.py [--steps 200] [--prompts 16] [--size 512] [--times 7]

The run is made up (`tests/support/run_folders.py`). Opening is from the navigation to the second frame after the first
view stands; `whole`, when the file is read to its end; a view takes from the click on its link to the second frame
after it stands. Medians over `--times` new pages, by the page's own clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the run is made up by the tests' helpers

from brorl_lab.metric_registry import declared_names  # noqa: E402
from brorl_lab.page.page import MIB, render_report  # noqa: E402
from brorl_lab.page.runs import open_runs  # noqa: E402

from nemo_brorl.core.console import Console  # noqa: E402
from nemo_brorl.training.store.files import StoreFiles  # noqa: E402
from tests.support.browser import WINDOW, missing, open_browser  # noqa: E402
from tests.support.run_folders import put_run, put_timeline  # noqa: E402

VIEWS = ("prompts", "groups", "timeline", "settings")
MAX_MIB = 5.0
OPENING = """
const note = (name) => { document.documentElement.dataset[name] = performance.now(); };
addEventListener('DOMContentLoaded', () => note('whole'));
const opened = new MutationObserver(() => {
    if (document.documentElement?.dataset.ready !== 'yes') return;
    opened.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => note('opening')));
});
opened.observe(document, { subtree: true, attributes: true, attributeFilter: ['data-ready'] });
"""
VIEW = """(view) => new Promise((done) => {
    const before = performance.now();
    const main = document.querySelector('main');
    const stands = new MutationObserver(() => {
        if (main.dataset.view !== view) return;
        stands.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - before)));
    });
    stands.observe(main, { attributes: true });
    document.querySelector(`nav a[data-view=${view}]`).click();
})"""


def main() -> None:
    """Print sizes and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=16, help="groups of a step")
    parser.add_argument("--size", type=int, default=512, help="rollouts of a group")
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    console = Console()
    reason = missing()
    if reason is not None:
        parser.error(reason)
    with tempfile.TemporaryDirectory() as name:
        metrics = [metric for metric in declared_names() if "{" not in metric]
        metrics += [f"rollouts/pass_at_{2**power}" for power in range(options.size.bit_length())]
        run = put_run(Path(name) / "run", options.steps, options.prompts, options.size, metrics=metrics)
        for step in range(max(1, options.steps - 10), options.steps + 1):
            put_timeline(run, step, num_chunks=256)
        store = StoreFiles(run)
        num_bytes = sum(store.size(step) for step in store.steps())
        start = time.monotonic()
        text = render_report(open_runs([run]), MAX_MIB)
        seconds = time.monotonic() - start
        path = Path(name) / "report.html"
        path.write_text(text)
        console.line(f"store {num_bytes / MIB:,.0f} MiB, report {len(text) / MIB:.2f} MiB, written in {seconds:.1f} s")
        with open_browser() as browser:
            rows = times_of(browser, path.as_uri(), options.times)
    console.table(["", "median, ms", "slowest, ms"], rows)


def times_of(browser: Any, address: str, times: int) -> list[list[str]]:
    """Return the median and largest milliseconds of opening the page and each view, in a new page every time."""
    found: dict[str, list[float]] = {}
    for _ in range(times):
        page = browser.new_page(viewport=WINDOW)
        page.add_init_script(OPENING)
        page.goto(address)
        page.wait_for_selector("html[data-opening][data-whole]")
        for name in ("opening", "whole"):
            milliseconds = page.locator("html").get_attribute(f"data-{name}")
            found.setdefault(name, []).append(float(milliseconds))
        for view in VIEWS:
            found.setdefault(view, []).append(page.evaluate(VIEW, view))
        page.close()
    return [[name, f"{statistics.median(values):.0f}", f"{max(values):.0f}"] for name, values in found.items()]


if __name__ == "__main__":
    main()
