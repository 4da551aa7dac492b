"""Sources: deterministic by index, splits that never share a question, clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.config.schema import DataConfig, TaskConfig
from nemo_brorl.errors import DataError
from nemo_brorl.prompts.sources import JsonlSource, ReasoningGymSource, check_tasks, is_held_out, make_source

SMALL_SUMS = TaskConfig(name="chain_sum", config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
GCD = TaskConfig(name="gcd", weight=3.0, config={"max_value": 50})


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_a_question_depends_on_seed_and_index_alone() -> None:
    forward = ReasoningGymSource([SMALL_SUMS, GCD], 0.2, "train", seed=3)
    texts = [forward.question(index).text for index in range(300)]
    other = ReasoningGymSource([SMALL_SUMS, GCD], 0.2, "train", seed=3)
    assert other.question(299).text == texts[299]
    assert [other.question(index).text for index in (5, 0, 280)] == [texts[5], texts[0], texts[280]]
    elsewhere = ReasoningGymSource([SMALL_SUMS, GCD], 0.2, "train", seed=4)
    assert [elsewhere.question(index).text for index in range(300)] != texts


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
    question = ReasoningGymSource([GCD], 0.1, "train", seed=1).question(0)
    payload = json.loads(json.dumps(question.payload))
    assert payload == question.payload
    assert payload["dataset"] == "gcd" and payload["config"] == {"max_value": 50}
    assert payload["question"] == question.text and payload["answer"].isdigit()
    assert question.verifier == "reasoning_gym"


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
    ],
)
def test_wrong_tasks_are_refused(tasks: list[TaskConfig], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_tasks(tasks)


def test_a_split_without_questions_is_an_error() -> None:
    with pytest.raises(DataError, match="no held_out question .*held_out_fraction=0.0"):
        ReasoningGymSource([SMALL_SUMS], 0.0, "held_out", seed=1).question(0)


def test_jsonl_shuffles_each_epoch_anew_and_loses_no_row(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", *[{"prompt": f"q{n}", "answer": str(n)} for n in range(8)])
    source = JsonlSource(path, 0.0, "train", seed=1)
    epochs = [[source.question(8 * epoch + n).text for n in range(8)] for epoch in range(3)]
    assert all(sorted(epoch) == [f"q{n}" for n in range(8)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert JsonlSource(path, 0.0, "train", seed=1).question(17).text == epochs[2][1]


def test_jsonl_rows_fill_in_task_and_verifier(tmp_path: Path) -> None:
    row = {"prompt": "2+2?", "answer": "4", "task": "sums", "metadata": {"level": 1}}
    question = make_source(
        DataConfig(source="jsonl", path=str(write_rows(tmp_path / "a.jsonl", row)), held_out_fraction=0.0), "train", 1
    ).question(0)
    assert (question.task, question.verifier) == ("sums", "exact_match")
    assert question.payload == {"question": "2+2?", "answer": "4", "metadata": {"level": 1}}


def test_jsonl_always_holds_out_something(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"})
    train, held_out = (JsonlSource(path, 1e-9, split, seed=1).rows for split in ("train", "held_out"))
    assert len(train) == len(held_out) == 1
    assert train[0].text != held_out[0].text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b"}\n', "line 3: 'answer' is None"),
        ('{"prompt": "a", "answer": 4}\n', "line 1: 'answer' is 4"),
        ("nonsense\n", "line 1: not JSON"),
        ("[1]\n", "line 1: a row is a JSON object .* not list"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=f"rows.jsonl.*{message}"):
        JsonlSource(path, 0.1, "train", seed=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig(source="jsonl"), "set data.path"),
        (DataConfig(source="jsonl", path="absent.jsonl"), "'absent.jsonl' is not a file"),
        (DataConfig(source="parquet"), "unknown data.source 'parquet'"),
    ],
)
def test_a_source_that_cannot_be_opened_is_an_error(config: DataConfig, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_source(config, "train", 1)
