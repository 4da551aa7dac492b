"""Sources: deterministic by index, splits that never share a question, every row once an epoch, clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graders.tests.support.names import allow_also
from nemo_brorl.config.data import ColumnsConfig, DataConfig, DomainConfig, TaskConfig, TaskStageConfig
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.prompts.questions import is_held_out
from nemo_brorl.prompts.reasoning_gym import NOT_IN_ALL_TASKS, ReasoningGymSource, check_tasks, expanded
from nemo_brorl.prompts.sources import make_source
from tests.unit.prompts.files import plain_rows, write_jsonl, write_parquet, write_saved_dataset

SMALL_SUMS = TaskConfig(name="chain_sum", config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
GCD = TaskConfig(name="gcd", weight=3.0, config={"max_value": 50})


def jsonl(path: Path, **settings: Any) -> DataConfig:
    return DataConfig(source="jsonl", path=str(path), **settings)


def texts(config: DataConfig, split: str = "train", seed: int = 1) -> list[str]:
    """One epoch of the only domain."""
    source = make_source(config, split, seed).domains[0].source
    return [source.question(index).text for index in range(source.size or 0)]


def test_a_question_depends_on_seed_and_index_alone() -> None:
    forward = ReasoningGymSource([SMALL_SUMS, GCD], 0.2, "train", seed=3)
    expected = [forward.question(index).text for index in range(300)]
    other = ReasoningGymSource([SMALL_SUMS, GCD], 0.2, "train", seed=3)
    assert other.question(299).text == expected[299]
    assert [other.question(index).text for index in (5, 0, 280)] == [expected[5], expected[0], expected[280]]
    elsewhere = ReasoningGymSource([SMALL_SUMS, GCD], 0.2, "train", seed=4)
    assert [elsewhere.question(index).text for index in range(300)] != expected


def test_train_and_held_out_share_no_question_even_in_a_small_space() -> None:
    train = ReasoningGymSource([SMALL_SUMS], 0.3, "train", seed=1)
    held_out = ReasoningGymSource([SMALL_SUMS], 0.3, "held_out", seed=2)
    train_texts = {train.question(index).text for index in range(400)}
    held_out_texts = {held_out.question(index).text for index in range(200)}
    assert not train_texts & held_out_texts
    assert all(is_held_out(text, 0.3) for text in held_out_texts)


def test_weights_are_the_shares_of_the_tasks() -> None:
    source = ReasoningGymSource([SMALL_SUMS, GCD], 0.1, "train", seed=1)
    share = sum(source.question(index).task == "gcd" for index in range(400)) / 400
    assert abs(share - 0.75) < 0.08  # three standard deviations are 0.065


def test_the_payload_is_json_and_carries_what_the_verifier_needs() -> None:
    question = ReasoningGymSource([GCD], 0.1, "train", seed=1, options={"scale": 2}).question(0)
    payload = json.loads(json.dumps(question.payload))
    assert payload == question.payload
    assert payload["dataset"] == "gcd" and payload["config"] == {"max_value": 50} and payload["scale"] == 2
    assert payload["question"] == question.text and payload["answer"].isdigit()
    assert question.verifier == "reasoning_gym"
    own = DataConfig(tasks=[GCD], verifier="mine.puzzles:score", verifier_options={"scale": 3})
    allow_also(verifiers=["mine.puzzles:score"])
    question = make_source(own, "train", 1).question(0)
    assert (question.verifier, question.payload["scale"]) == ("mine.puzzles:score", 3)


def test_options_that_the_verifier_cannot_use_are_refused() -> None:
    parts = [{"verifier": "reasoning_gym", "weight": 1.0}, {"verifier": "formatt", "weight": 1.0}]
    with pytest.raises((ConfigError, DataError), match="formatt"):
        make_source(DataConfig(tasks=[GCD], verifier="composite", verifier_options={"parts": parts}), "train", 1)


def test_a_curriculum_changes_a_tasks_settings_from_its_questions_on() -> None:
    stages = [
        TaskStageConfig(10, {"min_value": 100, "max_value": 200}),
        TaskStageConfig(30, {"min_value": 1000, "max_value": 2000}),
    ]
    source = ReasoningGymSource(
        [TaskConfig("gcd", config={"min_value": 2, "max_value": 9}, stages=stages)], 0.1, "train", seed=1
    )
    lowest = [source.question(index).payload["config"]["min_value"] for index in (0, 9, 10, 29, 30, 1000)]
    assert lowest == [2, 2, 100, 100, 1000, 1000]
    again = ReasoningGymSource(source.tasks, 0.1, "train", seed=1)
    assert again.question(30).text == source.question(30).text


def test_held_out_questions_are_of_all_stages_alike() -> None:
    task = TaskConfig("gcd", stages=[TaskStageConfig(100, {"max_value": 2000})])
    source = ReasoningGymSource([task], 0.1, "held_out", seed=1)
    assert ["max_value" in source.question(index).payload["config"] for index in range(4)] == [False, True, False, True]


def test_a_star_is_every_task_that_is_not_named() -> None:
    tasks = expanded([TaskConfig("*", weight=2.0), GCD])
    names = [task.name for task in tasks]
    assert len(names) == len(set(names)) > 90
    assert names.count("gcd") == 1 and not set(names) & set(NOT_IN_ALL_TASKS)
    assert sum(task.weight for task in tasks) == pytest.approx(2.0 + 3.0)


def test_an_unknown_task_is_refused_with_close_names() -> None:
    with pytest.raises(DataError, match="unknown Reasoning Gym task 'chainsum'; did you mean chain_sum"):
        check_tasks([TaskConfig(name="chainsum")])


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "data.tasks is empty"),
        ([TaskConfig(name="gcd", weight=0.0)], "gcd has weight 0.0"),
        ([TaskConfig(name="gcd", config={"max_valeu": 9})], "does not take config .*its settings are .*max_value"),
        ([TaskConfig(name="gcd", config={"min_value": 9, "max_value": 3})], "gcd does not take config"),
        ([TaskConfig(name="gcd", stages=[TaskStageConfig(5, {"max_valeu": 9})])], "gcd does not take config"),
        ([TaskConfig(name="composite")], "list those in data.tasks"),
    ],
)
def test_wrong_tasks_are_refused(tasks: list[TaskConfig], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_tasks(tasks)


def test_a_split_without_questions_is_an_error() -> None:
    with pytest.raises(DataError, match="no held_out question .*held_out_fraction=0.0"):
        ReasoningGymSource([SMALL_SUMS], 0.0, "held_out", seed=1).question(0)


def test_every_epoch_is_a_new_order_of_all_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(8))
    source = make_source(jsonl(path, held_out_fraction=0.0), "train", seed=1)
    epochs = [[source.question(8 * epoch + n).text for n in range(8)] for epoch in range(3)]
    assert all(sorted(epoch) == [f"q{n}" for n in range(8)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert make_source(jsonl(path, held_out_fraction=0.0), "train", seed=1).question(17).text == epochs[2][1]
    assert texts(jsonl(path, held_out_fraction=0.0), seed=2) != epochs[0]


def test_the_same_rows_are_read_from_every_format(tmp_path: Path) -> None:
    rows = [{**row, "metadata": {"level": n, "tags": ["a", "b"]}} for n, row in enumerate(plain_rows(20))]
    places = [
        ("jsonl", write_jsonl(tmp_path / "a.jsonl", rows)),
        ("parquet", write_parquet(tmp_path / "a.parquet", rows, row_group_size=6)),
        ("dataset", write_saved_dataset(tmp_path / "saved", rows)),
        ("dataset", write_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet", rows).parents[1]),
    ]
    found = []
    for kind, path in places:
        source = make_source(DataConfig(source=kind, path=str(path)), "train", 1)
        questions = [source.question(index) for index in range(5)]
        found.append([(question.text, dict(question.payload), question.verifier) for question in questions])
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0][1]["metadata"]["tags"] == ["a", "b"]


def test_rows_fill_in_task_and_options(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"prompt": "2+2?", "answer": 4, "task": "sums", "metadata": {"level": 1}}]
    )
    question = make_source(jsonl(path, held_out_fraction=0.0, verifier_options={"scale": 1}), "train", 1).question(0)
    assert (question.task, question.verifier) == ("sums", "exact_match")
    assert question.payload == {"question": "2+2?", "answer": 4, "metadata": {"level": 1}, "scale": 1}


def test_a_row_names_its_verifier_only_where_the_settings_name_a_column_for_it(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2?", "answer": "4", "verifier": "mine.sums:score"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    question = make_source(jsonl(path, held_out_fraction=0.0), "train", 1).question(0)
    assert (question.task, question.verifier) == ("jsonl", "exact_match")
    allow_also(verifiers=["mine.sums:score"])
    asked = jsonl(path, held_out_fraction=0.0, columns=ColumnsConfig(verifier="verifier"))
    assert make_source(asked, "train", 1).question(0).verifier == "mine.sums:score"


def test_something_is_always_held_out(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(2))
    train, held_out = (texts(jsonl(path, held_out_fraction=1e-9), split) for split in ("train", "held_out"))
    assert len(train) == len(held_out) == 1
    assert train != held_out


def test_a_held_out_file_is_never_trained_on_in_any_domain(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", plain_rows(10))
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [*plain_rows(3), {"prompt": "new", "answer": "1"}])
    config = jsonl(train, held_out_path=str(held_out))
    assert sorted(texts(config, "held_out")) == ["new", "q0", "q1", "q2"]
    assert sorted(texts(config)) == [f"q{n}" for n in range(3, 10)]
    domains = [
        DomainConfig(source="jsonl", path=str(train), name="a", held_out_path=str(held_out)),
        DomainConfig(source="jsonl", path=str(train), name="b"),
    ]
    mixture = DataConfig(source="mixture", domains=domains, held_out_fraction=0.0)
    sources = [domain.source for domain in make_source(mixture, "train", 1).domains]
    assert [{source.question(n).text for n in range(7)} for source in sources] == [{f"q{n}" for n in range(3, 10)}] * 2
    assert [domain.name for domain in make_source(mixture, "held_out", 1).domains] == ["a"]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(2))
    assert sorted(texts(jsonl(path, held_out_fraction=0.0))) == ["q0", "q1"]
    write_jsonl(path, plain_rows(3))
    assert sorted(texts(jsonl(path, held_out_fraction=0.0))) == ["q0", "q1", "q2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b"}\n', "line 3: 'answer' is missing"),
        ('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": null}\n', "line 2: 'answer' is None"),
        ('{"prompt": "a", "answer": " "}\n', "line 1: verifier exact_match: 'answer' is ' '"),
        ('{"prompt": " ", "answer": "1"}\n', "line 1: 'prompt' is .*non-empty text"),
        ('{"prompt": "a", "answer": "1", "task": 3}\n', "line 1: 'task' is 3; write a non-empty text"),
        (
            '{"prompt": "a", "answer": "1"}\n{"prompt": "a", "answer": "2"}\n',
            "line 2: asks the question of .*rows.jsonl, line 1 and has another answer",
        ),
        ('{"prompt": "\\ud800", "answer": "1"}\n', "line 1: 'prompt' has half of a character"),
        ("nonsense\n", "begins with 'nonsense' and has no objects of JSON"),
        ("{nonsense\n", "line 1: not JSON"),
        ('{"prompt": "a", "answer": "1", "answer": "2"}\n', "line 1: not JSON: it has the key 'answer' twice"),
        ("[1]\n", "line 1: a row is a JSON object, not list"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=f"rows.jsonl.*{message}"):
        make_source(jsonl(path), "train", seed=1)


@pytest.mark.parametrize("column", ["score", "metadata", "extra_info"])
def test_numbers_that_are_none_refuse_no_row_where_nothing_reads_them(tmp_path: Path, column: str) -> None:
    rows = [{"prompt": f"1+{number}", "answer": "1", column: {"rate": [float("nan")]}} for number in range(3)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert sorted(texts(jsonl(path, held_out_fraction=0.0))) == ["1+0", "1+1", "1+2"]


def test_a_missing_task_of_pandas_is_none(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "1+1", "answer": "2", "task": float("nan")}])
    source = make_source(jsonl(path, held_out_fraction=0.0), "train", 1).domains[0].source
    assert isinstance(source.question(0).task, str)


def test_a_row_that_asks_for_no_verifier_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "answer": "1", "verifier": "exact"}])
    with pytest.raises(DataError, match="rows.jsonl, line 1: unknown verifier 'exact'; choose .*exact_match"):
        make_source(jsonl(path, columns=ColumnsConfig(verifier="verifier")), "train", seed=1)


def test_bad_rows_are_left_out_up_to_the_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.jsonl"
    good = [json.dumps(row) for row in plain_rows(5)]
    changed = json.dumps({**plain_rows(1)[0], "answer": "7"})
    path.write_text("\n".join([*good[:2], "nonsense", *good[2:], '{"prompt": "x"}', changed]))
    with pytest.raises(
        DataError,
        match="more than data.max_bad_rows=2: .*line 3: not JSON.*line 7: 'answer' is missing.*line 8: asks the",
    ):
        texts(jsonl(path, held_out_fraction=0.0, max_bad_rows=2))
    assert sorted(texts(jsonl(path, held_out_fraction=0.0, max_bad_rows=3))) == [f"q{n}" for n in range(5)]
    assert "3 rows are left out" in caplog.text and "line 3: not JSON" in caplog.text


def test_bad_rows_of_parquet_are_named_by_row(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [*plain_rows(4), {"prompt": None, "answer": "1"}], row_group_size=2)
    with pytest.raises(DataError, match="a.parquet, row 5: 'prompt' is None"):
        make_source(DataConfig(source="parquet", path=str(path)), "train", 1)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "dataset"])
def test_a_wrong_column_is_answered_with_those_that_are_there(tmp_path: Path, kind: str) -> None:
    rows = [{"who": "a", "target": "1"}, {"who": "b", "target": "2"}]
    write = {"jsonl": write_jsonl, "parquet": write_parquet, "dataset": write_saved_dataset}[kind]
    config = DataConfig(source=kind, path=str(write(tmp_path / f"rows.{kind}", rows)))
    with pytest.raises(
        DataError,
        match="has no column answer, prompt; it has who, target. Say which is which: "
        "set data.columns.prompt=who data.columns.answer=target",
    ):
        make_source(config, "train", 1)
    config.columns = ColumnsConfig(prompt="who", answer="target")
    assert make_source(config, "train", 1).question(0).payload["answer"] in ("1", "2")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig(source="jsonl"), "set data.path"),
        (DataConfig(source="jsonl", path="absent.jsonl"), "'absent.jsonl' is not a file"),
        (DataConfig(source="csv"), "unknown data.source 'csv'"),
        (
            DataConfig(source="mixture", domains=[DomainConfig(source="jsonl", path="absent", name="math")]),
            "domain math: 'absent' is not",
        ),
        (
            DataConfig(source="mixture", domains=[DomainConfig(name="a", tasks=[GCD], weight=0.0)]),
            "the weights of no domains sum to 0",
        ),
    ],
)
def test_a_source_that_cannot_be_opened_is_an_error(config: DataConfig, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_source(config, "train", 1)


def test_an_unknown_verifier_is_an_error_before_any_row_is_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(2))
    with pytest.raises(ConfigError, match="unknown verifier 'maths'; choose"):
        make_source(jsonl(path, verifier="maths"), "train", 1)


def test_held_out_rows_must_come_from_somewhere(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(4))
    with pytest.raises(
        DataError, match="there are no held_out rows: data.held_out_fraction=0.0, and no data.held_out_path"
    ):
        make_source(jsonl(path, held_out_fraction=0.0), "held_out", 1)
    with pytest.raises(DataError, match="has no train rows: all of its 4 questions are held out"):
        make_source(jsonl(path, held_out_path=str(path)), "train", 1)
