"""Two models on the same prompts, from an evaluation.json; tables of both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.evaluation.answers import AnswerFile
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.comparison import Other, compare, read_other
from nemo_brorl.evaluation.identity import identity_of
from nemo_brorl.evaluation.results import Results, as_json, folder_of, results_of, write
from nemo_brorl.evaluation.tables import comparison_table, markdown, score_table
from tests.unit.evaluation.answers import made, make_benchmark

SETTINGS = EvaluationConfig(bootstrap_samples=500)
TOY, MORE = make_benchmark("toy", 4), make_benchmark("more", 2)
BEFORE = {"toy": ["0000", "1000", "1100", "1110"], "more": ["0000", "1111"]}
AFTER = {"toy": ["1100", "1100", "1100", "1111"], "more": ["0000", "1110"]}


def answered(
    folder: Path, benchmarks: list[Benchmark], right: dict[str, list[str]], weights: str
) -> dict[str, AnswerFile]:
    files = {}
    for benchmark in benchmarks:
        with AnswerFile(folder, identity_of(BroRLConfig(), weights, benchmark)) as file:
            for index in reversed(range(len(benchmark.prompts))):  # as they may come
                file.add(made(f"{benchmark.name}/{index}", right[benchmark.name][index], domain=benchmark.name))
        files[benchmark.name] = file
    return files


def written(
    folder: Path, right: dict[str, list[str]], benchmarks: list[Benchmark], other: Other | None = None
) -> Results:
    files = answered(folder / "answers", benchmarks, right, folder.name)
    results = results_of(folder.name, benchmarks, files, SETTINGS, other)
    record = as_json(results, benchmarks, files, SETTINGS)
    write(folder, folder_of(folder, Path("base"), files), record, markdown(results, record))
    return results


def test_a_comparison_of_four_prompts_by_hand(tmp_path: Path) -> None:
    written(tmp_path / "base", BEFORE, [TOY])
    results = written(tmp_path / "trained", AFTER, [TOY], read_other(tmp_path / "base" / "evaluation.json", [TOY]))
    found = results.comparison["toy"]
    # differences 1/2, 1/4, 0, 1/4
    assert (found.before, found.after, found.test.difference.value) == (0.375, 0.625, 0.25)
    assert found.test.p_value == pytest.approx(0.0917211, abs=1e-6)
    assert (found.wins, found.ties, found.losses) == (3, 1, 0)
    assert list(results.comparison) == ["toy"], "one benchmark is all there is"
    record = json.loads((tmp_path / "trained" / "evaluation.json").read_text())
    assert record["comparison"]["toy"]["t"] == pytest.approx(6**0.5)
    assert record["comparison"]["model"] == "base"


def test_several_benchmarks_are_compared_one_by_one_and_together(tmp_path: Path) -> None:
    written(tmp_path / "base", BEFORE, [TOY, MORE])
    other = read_other(tmp_path / "base" / "evaluation.json", [TOY, MORE])
    found = written(tmp_path / "trained", AFTER, [TOY, MORE], other).comparison
    assert list(found) == ["toy", "more", "all prompts", "mean of benchmarks"]
    assert found["more"].test.difference.value == pytest.approx(-0.125)
    assert found["all prompts"].test.difference.value == pytest.approx((0.5 + 0.25 + 0 + 0.25 + 0 - 0.25) / 6)
    assert found["mean of benchmarks"].test.difference.value == pytest.approx((0.25 - 0.125) / 2)
    assert (found["all prompts"].wins, found["all prompts"].ties, found["all prompts"].losses) == (3, 2, 1)


def test_a_model_against_itself_is_no_different(tmp_path: Path) -> None:
    written(tmp_path / "base", BEFORE, [TOY])
    other = read_other(tmp_path / "base" / "evaluation.json", [TOY])
    found = compare(
        other, {"toy": [made(f"toy/{index}", right) for index, right in enumerate(BEFORE["toy"])]}, SETTINGS
    )["toy"]
    assert (found.test.p_value, found.ties) == (1.0, 4)


CHANGES = [
    ([replace(TOY, num_samples=8)], "toy was asked with samples_per_prompt=4, here 8"),
    ([make_benchmark("toy", 4, temperature=0.5)], "toy was asked with temperature=1.0, here 0.5"),
    ([replace(TOY, system_prompt="Think.")], "toy was asked with system_prompt=None, here Think."),
    ([make_benchmark("toy", 3)], "toy has 4 prompts there and 3 here"),
    ([make_benchmark("toy", 4, verifier="math")], "toy holds other questions or scores them otherwise"),
    ([TOY, MORE], "it has no more; ask only toy"),
    ([MORE], "it has toy, which is not asked here: add it"),
]


@pytest.mark.parametrize(("benchmarks", "message"), CHANGES)
def test_what_was_asked_otherwise_is_not_compared(benchmarks: list[Benchmark], message: str, tmp_path: Path) -> None:
    written(tmp_path / "base", BEFORE, [TOY])
    with pytest.raises(CheckpointError, match=message):
        read_other(tmp_path / "base" / "evaluation.json", benchmarks)


def test_another_tokenizer_does_not_stand_in_the_way(tmp_path: Path) -> None:
    written(tmp_path / "base", BEFORE, [TOY])
    longer = replace(TOY, prompts=tuple(replace(prompt, token_ids=(7, 7, 7, 7)) for prompt in TOY.prompts))
    assert read_other(tmp_path / "base" / "evaluation.json", [longer]).model == "base"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"model": "a"}',
        '{"model": "a", "benchmarks": {"toy": {}}}',
        '{"model": "a", "overall": {}, "tasks": {}}',
    ],
)
def test_a_file_that_is_no_evaluation_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(text)
    with pytest.raises(CheckpointError, match="is no evaluation.json of this version"):
        read_other(tmp_path / "evaluation.json", [TOY])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_other(tmp_path / "nowhere.json", [TOY])


def test_tables_on_the_console_and_in_markdown_say_the_same(tmp_path: Path) -> None:
    written(tmp_path / "base", BEFORE, [TOY, MORE])
    other = read_other(tmp_path / "base" / "evaluation.json", [TOY, MORE])
    results = written(tmp_path / "trained", AFTER, [TOY, MORE], other)
    header, *rows = score_table(results, 0.95)
    assert header[:7] == ["benchmark", "prompts", "n", "pass@1", "s.e.", "95% interval", "pass@4"]
    assert [row[0] for row in rows] == ["toy", "more", "all prompts", "mean of benchmarks"]
    assert rows[0][1:4] == ["4", "4", "62.5%"]
    assert rows[3][3] == "50.0%"
    text = (tmp_path / "trained" / "evaluation.md").read_text()
    assert text.startswith("# Evaluation of trained\n")
    assert "| toy | 4 | 4 | 62.5% |" in text
    assert "## Against base" in text
    assert "| toy | 4 | 37.5% | 62.5% | +25.0 |" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in tables[:6]] == [len(header) + 1] * 6
    assert comparison_table(results.comparison)[1][-1] == "3 / 1 / 0"
    assert comparison_table({}) == []


def test_each_evaluation_keeps_its_own_copy(tmp_path: Path) -> None:
    results = [written(tmp_path / "run", right, [TOY]) for right in (BEFORE,)]
    files = answered(tmp_path / "run" / "answers", [TOY], AFTER, "later weights")
    later = results_of("later", [TOY], files, SETTINGS, None)
    record = as_json(later, [TOY], files, SETTINGS)
    write(tmp_path / "run", folder_of(tmp_path / "run", Path("base"), files), record, markdown(later, record))
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["overall"]["pass_at_1"] == 0.625
    kept = {
        json.loads(path.read_text())["overall"]["pass_at_1"]
        for path in (tmp_path / "run" / "evaluations").glob("*/evaluation.json")
    }
    assert kept == {results[0].overall.pass_at_1.value, 0.625}
