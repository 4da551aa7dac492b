"""What was found out about files is used again, until they or the settings change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_brorl.config.schema import DataConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts import file_source, sources
from nemo_brorl.prompts.file_source import index_path, load_index
from nemo_brorl.prompts.sources import make_source


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_BYTES", 0)


def write(path: Path, answers: list[str]) -> Path:
    path.write_text(
        "\n".join(
            json.dumps({"prompt": f"question {number}", "answer": answer}) for number, answer in enumerate(answers)
        )
    )
    return path


def questions(path: Path, folder: Path, **settings: object) -> list[tuple[str, str]]:
    """All (text, answer) of a start that remembers nothing but the folder."""
    sources._looked_through.cache_clear()
    config = DataConfig(source="jsonl", path=str(path), held_out_fraction=0.0, **settings)  # type: ignore[arg-type]
    source = make_source(config, "train", 1, folder).domains[0].source
    assert source.size is not None
    return [(question.text, question.payload["answer"]) for question in map(source.question, range(source.size))]


def test_a_second_start_asks_the_same_without_looking_through_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rows.jsonl", ["1", "2", "3"])
    first = questions(path, tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr(
            "nemo_brorl.prompts.file_tables.Tables.scan",
            lambda self: pytest.fail("the file was looked through"),
        )
        assert questions(path, tmp_path / "index") == first
    assert len(first) == 3


def test_a_file_or_a_setting_that_changed_is_looked_through_again(tmp_path: Path) -> None:
    path, index = write(tmp_path / "rows.jsonl", ["1", "2"]), tmp_path / "index"
    assert len(questions(path, index)) == 2
    write(path, ["1", "2", "3"])
    assert len(questions(path, index)) == 3
    write(path, ["1", "2", "4"])
    os.utime(path, ns=(1, 1))
    assert sorted(answer for _, answer in questions(path, index)) == ["1", "2", "4"]
    questions(path, index, verifier="math")
    assert len(list(index.iterdir())) == 4


def test_rows_left_out_stay_left_out_and_too_many_are_refused_every_time(tmp_path: Path) -> None:
    path, index = write(tmp_path / "rows.jsonl", ["1", "", "3"]), tmp_path / "index"
    assert questions(path, index, max_bad_rows=1) == questions(path, index, max_bad_rows=1)
    (kept,) = index.iterdir()
    found = load_index(kept)
    assert found is not None
    assert (found.rows.tolist(), found.num_left_out) == ([0, 2], 1)
    for _ in range(2):
        with pytest.raises(DataError, match="more than data.max_bad_rows=0"):
            questions(path, index)


def test_a_damaged_index_and_a_folder_that_cannot_be_written_are_done_without(tmp_path: Path) -> None:
    path, index = write(tmp_path / "rows.jsonl", ["1", "2"]), tmp_path / "index"
    first = questions(path, index)
    (kept,) = index.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert questions(path, index) == first
    assert load_index(kept) is not None
    assert questions(path, path / "below a file") == first


def test_code_that_reads_rows_otherwise_has_an_index_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in file_source.CODE:
        assert any(folder.rglob("*.py")), f"there is no code in {folder}"
    module = tmp_path / "verifiers" / "math" / "answer.py"
    module.parent.mkdir(parents=True)
    module.write_text("MAX_TAIL = 1")
    monkeypatch.setattr(file_source, "CODE", (tmp_path,))
    before = index_path(tmp_path, ["rows.jsonl"])
    assert index_path(tmp_path, ["rows.jsonl"]) == before
    module.write_text("MAX_TAIL = 2")
    assert index_path(tmp_path, ["rows.jsonl"]) != before
