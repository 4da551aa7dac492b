"""Files as one table: they follow each other, whatever their formats; one that is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.file_tables import first_rows, open_tables
from nemo_brorl.prompts.find_files import dataset_files, matching_files
from tests.unit.prompts.files import write_jsonl, write_saved_dataset

NUMBERS = [{"n": n, "text": f"row {n}"} for n in range(10)]


def test_a_saved_dataset_is_mapped_batch_by_batch(tmp_path: Path) -> None:
    folder = write_saved_dataset(tmp_path / "saved", NUMBERS, num_shards=2, batch_rows=2)
    tables = open_tables(dataset_files(folder, None), ["n", "text"])
    assert [tables.row(index) for index in range(10)] == NUMBERS[0::2] + NUMBERS[1::2]
    assert [number for number, _ in tables.scan()] == list(range(10))
    assert tables.locate_row(6).endswith("data-00001-of-00002.arrow, row 2")


@pytest.mark.parametrize("indent", [None, 2])
def test_the_first_rows_of_a_json_array_are_its_first_objects(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "array.json"
    path.write_text(json.dumps(NUMBERS, indent=indent))
    assert first_rows(path, ["n"], 3) == NUMBERS[:3]


def test_the_first_rows_are_found_without_reading_on(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(NUMBERS)[:-1])
    assert first_rows(path, ["n"], 3) == NUMBERS[:3]


def test_files_follow_each_other_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, part in (("b", NUMBERS[4:]), ("a", NUMBERS[:4])):
        write_jsonl(tmp_path / f"{name}.jsonl", part)
    tables = open_tables(matching_files(f"{tmp_path}/*.jsonl"), ["n"])
    assert [row for _, row in tables.scan()] == NUMBERS
    assert tables.locate_row(4).endswith("b.jsonl, line 1")


@pytest.mark.parametrize("name", ["bad.parquet", "bad.arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is not what the name says")
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        open_tables([tmp_path / name], ["n"])
