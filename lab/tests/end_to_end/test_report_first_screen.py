"""The first screen of a run's page in a real Chromium: sentences, a response before and after; charts that outliers do
not flatten, on the screen and on paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import missing, open_browser
from tests.support.run_folders import HOSTILE, put_answers, put_run
from tests.support.watched_page import Watched, put_report, texts, watch

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# 20 steps of an update's KL, as one run had them: all small but those of steps 7 and 19.
KL = [
    0.02,
    0.05,
    0.04,
    0.06,
    0.03,
    0.05,
    7.38,
    0.04,
    0.05,
    0.08,
    0.03,
    0.06,
    0.02,
    0.05,
    0.04,
    0.06,
    0.03,
    0.05,
    5.53,
    0.04,
]
RECORD = {"step": 4, "measure": "pass@1", "value": 0.7, "standard_error": 0.02, "base_value": 0.2}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = put_run(tmp_path_factory.mktemp("runs") / "sums", num_steps=4, prompts=4, size=8, responses=HOSTILE)
    put_record(folder, is_base_better=False)
    return folder


def put_record(folder: Path, **more: Any) -> None:
    (folder / "hf" / "validated.json").write_text(json.dumps(RECORD | more))


@pytest.fixture
def opened(browser: Any, folder: Path) -> Iterator[Watched]:
    yield from watch(browser, put_report([folder]), color_scheme="dark")


def test_the_first_sentences_say_from_where_to_where_how_long_and_what_is_in_hf(opened: Watched) -> None:
    page = opened.open()
    [story] = texts(page, ".story")
    went = "sums went from 20.0 % ± 2.0 % to 70.0 % ± 2.0 % held-out pass@1 in 4 steps"
    assert story == f"{went} and 38 s. The folder hf/ has the weights of step 4."
    assert len([text for text in texts(page, "main p") if text.startswith("± is one standard error")]) == 1
    [bought] = texts(page, ".note")
    assert bought.startswith("What N buys: ")
    assert "of the prompts of step 4 are informative with N = 8. It would be" in bought


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            {"is_base_better": False, "step": 2},
            "The folder hf/ has the weights of step 2, the best validation: 70.0 %.",
        ),
        (
            {"is_base_better": True, "value": 0.15},
            "The base was better than every validated step: 20.0 %, and 15.0 % at step 4, whose weights are in hf/.",
        ),
        ({}, "The folder hf/ has no weights of a validation."),
    ],
)
def test_it_is_said_which_weights_are_in_hf_and_that_the_base_was_better(
    browser: Any, tmp_path: Path, record: dict[str, Any], said: str
) -> None:
    run = put_run(tmp_path / "sums", num_steps=4, prompts=2, size=4)
    put_record(run, **record)
    for watched in watch(browser, put_report([run])):
        assert texts(watched.open(), ".story")[0].endswith(f" 38 s. {said}")


@pytest.mark.parametrize(
    ("rows", "record", "said"),
    [
        (
            [
                {"validation/pass_at_1": 0, "validation/reward": -1.5},
                {"validation/pass_at_1": 0, "validation/reward": 2.5},
            ],
            {"measure": "mean reward", "step": 1, "value": 2.5, "is_base_better": False},
            "a went from -1.5 to 2.5 held-out mean reward in 1 of 4 steps and 5 s. "
            "The folder hf/ has the weights of step 1.",
        ),
        ([{}, {"reward/mean": 0.25}], {}, "a: mean reward of sampled rollouts 0.25 at step 1, after 5 s."),
        (
            [{"validation/pass_at_1": 0.0, "validation/pass_at_1_standard_error": 0.0}, {}],
            {},
            "a: held-out pass@1 0.0 % at step 0",
        ),
        ([{}, {}], {}, "a has no validation yet."),
    ],
)
def test_a_run_is_told_by_what_it_has_measured(
    browser: Any, tmp_path: Path, rows: list[dict[str, float]], record: dict[str, Any], said: str
) -> None:
    run = tmp_path / "a"
    (run / "hf").mkdir(parents=True)
    rows[-1]["time/collect_s"] = 5.0
    lines = [json.dumps({"step": step} | row) + "\n" for step, row in enumerate(rows)]
    (run / "metrics.jsonl").write_text("".join(lines))
    (run / "config.yaml").write_text("trainer: {max_steps: 4}")
    put_record(run, **record)
    for watched in watch(browser, put_report([run])):
        assert texts(watched.open(), ".story")[0].startswith(said)


def test_a_response_before_and_one_after_are_text(opened: Watched) -> None:
    page = opened.open()
    assert [text.splitlines()[0] for text in texts(page, ".answers .message")] == [
        "Before training ✗ reward 0",
        "After step 4 ✓ right",
    ]
    assert "<script>document.title='taken'</script>" in texts(page, ".answers .said")[-1]
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "BroRL: sums"


def test_of_a_run_without_such_responses_nothing_is_shown(browser: Any, tmp_path: Path) -> None:
    run = put_run(tmp_path / "sums", num_steps=1, prompts=2, size=4)
    (run / "validations" / "step_0.jsonl").unlink()
    put_answers(run, 1, "so", 1.0)
    for watched in watch(browser, put_report([run])):
        assert watched.open().locator(".answers").count() == 0


def test_legends_are_words_and_what_has_no_unit_has_no_label(opened: Watched) -> None:
    page = opened.open()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    labels = texts(page, ".u-series .u-label")
    assert {"pass@1", "pass@8", "sampling", "update", "validation"} <= set(labels)
    assert not [label for label in labels if "_" in label or "/" in label]
    assert page.evaluate("axes('step', '', {}).concat(axes('step', 'nats', {})).map((axis) => axis.label)") == [
        "step",
        None,
        "step",
        "nats",
    ]


def ranges(page: Any, unit: str, *curves: list[float | None], intervals: list[Any] | None = None) -> Any:
    series = [{"values": values, "intervals": intervals} for values in curves]
    return page.evaluate("([series, unit]) => rangesOf(series, unit)", [series, unit])


def test_outliers_leave_the_axis_to_the_other_values(opened: Watched) -> None:
    page = opened.open()
    assert ranges(page, "nats", KL)[1] == [0.02, 0.08]
    assert ranges(page, "nats", KL, [9.0 + number for number in range(20)])[1] is None, "the other curve needs the axis"
    assert ranges(page, "nats", [-value for value in KL])[1] == [-0.08, -0.02]
    last = [*KL[:6], None, *KL[7:18], 7.0]
    assert ranges(page, "nats", last)[1] == [0.02, 0.08], "also at the last step, and with gaps"
    wide = [[0, 0.1]] * 19 + [[-50, 50]]
    usual = ranges(page, "", [0.05, 0.06] * 10, intervals=wide)
    assert usual == [[-50, 50], [0, 0.1]], "an interval may be the outlier"


@pytest.mark.parametrize(
    "values",
    [
        [0.1 * number for number in range(20)],
        [2.0**number for number in range(20)],
        [0.1, 0.11, 0.1, 0.09, 0.1, 0.11, 0.1, 0.09, 5, 5, 5, 5],
        [0.1, 0.6, 0.61, 0.62, 0.6, 0.61, 0.62, 0.6, 0.61, 0.62],
        [0.0] * 19 + [1.0],
        [0.1, 0.11, 0.1, 9.0],
    ],
)
def test_what_rises_stays_or_is_too_short_has_no_outliers(opened: Watched, values: list[float]) -> None:
    assert ranges(opened.open(), "nats", values)[1] is None


def test_shares_have_no_outliers(opened: Watched) -> None:
    assert ranges(opened.open(), "share", [value / 8 for value in KL])[1] is None


def test_a_value_beyond_the_axis_is_written_at_its_edge(opened: Watched) -> None:
    page = opened.open()
    drawn = """(values) => {
        const xs = values.map((value, index) => index);
        const element = lines({ title: "KL", xs, series: [{ label: "KL", values }], unit: "nats" });
        main.append(element);
        const written = [];
        const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = (text) => written.push(text);
        element.start();
        return new Promise((done) => setTimeout(() => {
            CanvasRenderingContext2D.prototype.fillText = write;
            done(written);
        }, 200));
    }"""
    written = page.evaluate(drawn, KL)
    assert {"7.38", "5.53"} <= set(written)
    assert (
        max(float(text) for text in written if text.replace(".", "").isdigit() and "." in text and float(text) < 1)
        <= 0.1
    )


def test_numbers_have_the_digits_that_their_noise_leaves(opened: Watched) -> None:
    page = opened.open()
    shown = page.evaluate("""[
        number(0.6851, 0.03), number(0.6851), number(1234.5678, 20), number(3.14e-7, 1e-8), number(0, 1e-7),
        withError(0.728, 0.0231, "share"), withError(0.7283, 0.00231, "share"), withError(0.7, 0.15, "share"),
        withError(0.7, 0, "share"), withError(1.5, 0.25, "nats"), noise([1, 2]), interval([0.661, 0.739]),
    ]""")
    assert shown[:5] == ["0.69", "0.6851", "1235", "3.1e-7", "0"]
    assert shown[5:8] == ["72.8 % ± 2.3 %", "72.83 % ± 0.23 %", "70 % ± 15 %"]
    assert shown[8:] == ["70.0 %", "1.50 nats ± 0.25 nats", None, "66.1 … 73.9 %"]
    assert page.evaluate("noise([0, 1, 0, 1, 0, 1, 0, 1, 5, 1])") == 1


def test_on_paper_every_chart_is_drawn_in_light_colours(opened: Watched) -> None:
    page = opened.open()
    num_charts = page.locator("main figure").count()
    assert page.locator("main figure canvas").count() < num_charts
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main figure canvas").count() == num_charts
    assert page.evaluate("isDark()") is False
    assert page.evaluate("Math.max(...[...charts].map((chart) => chart.width))") <= 718, (
        "pixels of A4 within its margins"
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("main figure canvas").count() == num_charts
    assert page.evaluate("isDark()") is True
