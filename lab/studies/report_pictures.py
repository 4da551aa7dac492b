"""Draw pictures of the report's views for the documentation, from existing runs.

    .venv/bin/python lab/studies/report_pictures.py RUN [OTHER_RUN] [--only timeline comparison] [--output docs/figures]

RUN is drawn alone, and in the comparison against OTHER_RUN. Needs Chromium and playwright; writes report_*.png.
The pictures `curves` and `phone` in docs/figures/ show ten steps of `conf/sums_cpu.yaml`. The others show runs of
`lab/studies/sweeps/cipher_chains.yaml`, seed 1: RUN with 8 × 512 rollouts a step, OTHER_RUN with 256 × 16.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # makes the tests' browser helper importable

from brorl_lab.page.page import render_report  # noqa: E402
from brorl_lab.page.runs import open_runs  # noqa: E402
from brorl_lab.trace_reader import timeline_steps  # noqa: E402

from tests.support.browser import PHONE, missing, open_browser  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
COLOURS = 256  # colours of a picture: enough for charts, at less than half the size
MAX_BYTES = 150_000


class Picture(NamedTuple):
    """A view of the report, in a window with a size in pixels."""

    name: str
    view: str
    width: int
    height: int
    scheme: str = "light"


ALONE = (
    Picture("curves", "curves", 1200, 860),
    Picture("prompts", "prompts", 1200, 900),
    Picture("groups", "groups", 1200, 640),
    Picture("group", "group", 1200, 900, "dark"),
    Picture("timeline", "timeline", 1200, 1060),
    Picture("phone", "curves", PHONE["width"], PHONE["height"], "dark"),
)
TOGETHER = (Picture("comparison", "compare", 1200, 820),)


def main() -> None:
    """Write screenshots of the views of the HTML report about one or two runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", choices=[picture.name for picture in (*ALONE, *TOGETHER)])
    parser.add_argument("--max-mib", type=float, default=5.0, help="of the reports that are drawn")
    parser.add_argument("--output", type=Path, default=FIGURES)
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        parser.error(reason)
    pages = [(ALONE, [options.run])]
    if options.other is not None:
        pages.append((TOGETHER, [options.other, options.run]))
    with open_browser() as browser:
        for pictures, runs in pages:
            wanted = [picture for picture in pictures if options.only is None or picture.name in options.only]
            draw(browser, wanted, runs, options.max_mib, options.output)


def draw(browser: Any, pictures: Sequence[Picture], runs: list[Path], max_mib: float, output: Path) -> None:
    """Write the given screenshots of the HTML report about the runs."""
    if not pictures:
        return
    with tempfile.TemporaryDirectory() as folder:
        address = write_report(Path(folder) / "report.html", runs, max_mib)
        for picture in pictures:
            if picture.view != "timeline" or timeline_steps(runs[0]):
                take_picture(browser, address, picture, output)


def write_report(path: Path, runs: list[Path], max_mib: float) -> str:
    """Write the HTML report about the given runs and return the URL of its file."""
    path.write_text(render_report(open_runs(runs), max_mib), encoding="utf-8")
    return path.as_uri()


def take_picture(browser: Any, address: str, picture: Picture, folder: Path) -> None:
    """Write a screenshot of one view of the HTML report into a folder."""
    window = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=window, color_scheme=picture.scheme)
    page = context.new_page()
    page.goto(f"{address}#groups" if picture.view == "group" else f"{address}#{picture.view}")
    page.wait_for_selector("html[data-ready=yes]")
    if picture.view == "group":
        page.get_by_label("Right, at most %").fill("20")
        page.get_by_label("Right, at least %").fill("3")
        page.locator("main td a").first.click()
        page.wait_for_selector(".response")
    if picture.view == "timeline":
        steps = page.get_by_role("combobox", name="Step", exact=True)
        before_last = max(0, steps.locator("option").count() - 2)  # the last step of a run also has a validation
        steps.select_option(index=before_last)
        page.wait_for_timeout(300)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(300)
    shot = Image.open(io.BytesIO(page.screenshot()))
    path = folder / f"report_{picture.name}.png"
    shot.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    num_bytes = path.stat().st_size
    assert num_bytes <= MAX_BYTES, f"{path} has {num_bytes} bytes, more than {MAX_BYTES}"
    context.close()


if __name__ == "__main__":
    main()
