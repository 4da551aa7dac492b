"""What evaluations leave on disk: numbers, tables, a copy of each."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.evaluation.answers import AnswerFile
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.results import Results, as_json, folder_of, results_of, write
from nemo_brorl.evaluation.tables import markdown, score_table
from tests.unit.evaluation.answers import identity, made, make_benchmark

SETTINGS = EvaluationConfig(bootstrap_samples=500)
TOY, MORE = make_benchmark("toy", 4), make_benchmark("more", 2)
BEFORE = {"toy": ["0000", "1000", "1100", "1110"], "more": ["0000", "1111"]}
AFTER = {"toy": ["1100", "1100", "1100", "1111"], "more": ["0000", "1110"]}


def answered(
    folder: Path, benchmarks: list[Benchmark], right: dict[str, list[str]], weights: str
) -> dict[str, AnswerFile]:
    files = {}
    for benchmark in benchmarks:
        with AnswerFile(folder, identity(benchmark, weights)) as file:
            for index in reversed(range(len(benchmark.prompts))):  # as they may come
                file.add(made(f"{benchmark.name}/{index}", right[benchmark.name][index], domain=benchmark.name))
        files[benchmark.name] = file
    return files


def written(folder: Path, right: dict[str, list[str]], benchmarks: list[Benchmark]) -> Results:
    files = answered(folder / "answers", benchmarks, right, folder.name)
    results = results_of(folder.name, benchmarks, files, SETTINGS)
    record = as_json(results, benchmarks, files, SETTINGS)
    write(folder, folder_of(folder, Path("base"), files), record, markdown(results, record))
    return results


def test_tables_on_the_console_and_in_markdown_say_the_same(tmp_path: Path) -> None:
    results = written(tmp_path / "trained", AFTER, [TOY, MORE])
    header, *rows = score_table(results, 0.95)
    assert header[:7] == ["benchmark", "prompts", "n", "pass@1", "s.e.", "95% interval", "pass@4"]
    assert [row[0] for row in rows] == ["toy", "more", "all prompts", "mean of benchmarks"]
    assert rows[0][1:4] == ["4", "4", "62.5%"]
    assert rows[3][3] == "50.0%"
    text = (tmp_path / "trained" / "evaluation.md").read_text()
    assert text.startswith("# Evaluation of trained\n")
    assert "| toy | 4 | 4 | 62.5% |" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in tables] == [len(header) + 1] * 6


def test_each_evaluation_keeps_its_own_copy(tmp_path: Path) -> None:
    results = [written(tmp_path / "run", right, [TOY]) for right in (BEFORE,)]
    files = answered(tmp_path / "run" / "answers", [TOY], AFTER, "later weights")
    later = results_of("later", [TOY], files, SETTINGS)
    record = as_json(later, [TOY], files, SETTINGS)
    write(tmp_path / "run", folder_of(tmp_path / "run", Path("base"), files), record, markdown(later, record))
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["overall"]["pass_at_1"] == 0.625
    kept = {
        json.loads(path.read_text())["overall"]["pass_at_1"]
        for path in (tmp_path / "run" / "evaluations").glob("*/evaluation.json")
    }
    assert kept == {results[0].overall.pass_at_1.value, 0.625}
