"""Near repeats stay on one side of the split, repeats are counted, and a resumed run notices what has changed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.config.data import DataConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.file_source import FileSource, open_questions
from nemo_brorl.prompts.fingerprints import fingerprint_of_texts
from nemo_brorl.prompts.question_keys import normal_form
from nemo_brorl.prompts.questions import is_held_out
from nemo_brorl.prompts.sources import make_source
from tests.unit.prompts.files import plain_rows, write_jsonl

FORMS = ("What is {0} + {0}?", " what is {0} + {0}?", "What is {0} + {0} ?", "WHAT IS {0} +\n{0}?", "What is {0}＋{0}?")


def texts(config: DataConfig, split: str) -> set[str]:
    source = make_source(config, split, 1).domains[0].source
    return {source.question(index).text for index in range(source.size or 0)}


def config_of(path: Path, **settings: Any) -> DataConfig:
    return DataConfig(source="jsonl", path=str(path), **settings)


def test_near_repeats_share_a_normal_form() -> None:
    assert {normal_form(form.format(4)) for form in FORMS} == {"whatis4+4?"}
    assert normal_form("e\u0301te\u0301 \u200bici") == normal_form("été ici") == "étéici"


def test_near_repeats_with_other_answers_are_questions_on_one_side_of_the_split(tmp_path: Path) -> None:
    rows = [
        {"prompt": form.format(number), "answer": str(answer)}
        for number in range(60)
        for answer, form in enumerate(FORMS)
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    train, held_out = (texts(config_of(path), split) for split in ("train", "held_out"))
    assert len(train) + len(held_out) == 300
    assert not {normal_form(text) for text in train} & {normal_form(text) for text in held_out}
    # One text of each five decides, so that the share stays a tenth: 6 of 60 questions, give or take 3 deviations.
    assert 5 <= len(held_out) <= 65


def test_a_file_without_near_repeats_is_split_by_the_hash_of_its_texts_as_before(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(300, "What IS question "))
    assert all(is_held_out(text, 0.1) for text in texts(config_of(path), "held_out"))
    assert not any(is_held_out(text, 0.1) for text in texts(config_of(path), "train"))


def test_questions_of_a_held_out_file_are_not_trained_on_in_another_form(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": FORMS[0].format(n), "answer": "1"} for n in range(20)])
    other = write_jsonl(tmp_path / "other.jsonl", [{"prompt": FORMS[3].format(n), "answer": "1"} for n in range(7)])
    assert len(texts(config_of(path, held_out_path=str(other)), "train")) == 13


def test_repeats_are_counted_and_left_out_where_the_settings_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows = [*plain_rows(3), *plain_rows(3), {"prompt": "Q0 ", "answer": plain_rows(1)[0]["answer"]}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(
        DataError,
        match="3 questions, and 4 rows repeat one of them, 1 of them but for blanks or case .*line 4 repeats .*line 1"
        ".*Set data.repeated_rows=drop",
    ):
        make_source(config_of(path), "train", 1)
    assert texts(config_of(path, repeated_rows="drop", held_out_fraction=0.0), "train") == {"q0", "q1", "q2"}
    assert "3 questions, and 4 rows repeat one of them" in caplog.text


def test_two_system_messages_make_two_questions(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "system", "content": base}, {"role": "user", "content": "Write 5."}], "answer": answer}
        for base, answer in (("Base ten.", "5"), ("Base two.", "101"))
    ]
    source = make_source(config_of(write_jsonl(tmp_path / "rows.jsonl", rows), held_out_fraction=0.0), "train", 1)
    assert {source.question(index).payload["answer"] for index in range(2)} == {"5", "101"}


def source_of(path: Path) -> FileSource:
    file = open_questions(config_of(path), str(path), "task")
    return FileSource(file, file.rows, "1")


def test_a_changed_answer_or_system_message_is_located(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(40))
    before = source_of(path).fingerprint
    assert source_of(path).change_since(before) == ""
    rows = plain_rows(40)
    rows[6]["answer"] = "another"
    write_jsonl(path, rows)
    assert source_of(path).change_since(before).endswith("rows.jsonl, line 7")
    rows = plain_rows(40)
    rows[8]["prompt"] = [{"role": "system", "content": "x"}, {"role": "user", "content": rows[8]["prompt"]}]
    write_jsonl(path, rows)
    assert source_of(path).change_since(before).endswith("rows.jsonl, line 9")
    write_jsonl(path, plain_rows(39))
    assert source_of(path).change_since(before) == "39 questions, 40 before"


def test_a_change_in_a_large_file_is_located_within_a_block_of_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", plain_rows(640))
    before = source_of(path).fingerprint
    rows = plain_rows(640)
    rows[25]["answer"] = "another"
    write_jsonl(path, rows)
    found = source_of(path).change_since(before)
    assert "line 21 to" in found and found.endswith("line 30")


def test_a_checkpoint_of_version_0_2_0_is_accepted_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = source_of(write_jsonl(tmp_path / "rows.jsonl", plain_rows(5)))
    earlier = fingerprint_of_texts(source.file.hashes, np.arange(5, dtype=np.int64))
    assert source.change_since(earlier) == ""
    assert "cannot tell whether answers have changed" in caplog.text
