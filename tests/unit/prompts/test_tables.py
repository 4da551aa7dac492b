"""Files by row number: an index in memory, rows on disk, damage named."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.arrow_tables import ArrowTable, ParquetTable
from nemo_brorl.prompts.file_tables import open_tables
from nemo_brorl.prompts.find_files import dataset_files, matching_files
from nemo_brorl.prompts.jsonl_table import JsonlTable
from nemo_brorl.prompts.questions import BadRow
from tests.unit.prompts.files import write_jsonl, write_parquet, write_saved_dataset

NUMBERS = [{"n": n, "text": f"row {n}"} for n in range(10)]


def test_a_large_file_is_opened_without_loading_it(tmp_path: Path) -> None:
    path, num = tmp_path / "large.jsonl", 200_000
    with path.open("w") as file:
        file.writelines(f'{{"prompt": "question {n} {"x" * 200}", "answer": "{n}"}}\n' for n in range(num))
    tracemalloc.start()
    table = JsonlTable(path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == num
    assert table.spans.nbytes == 16 * num  # first and last byte of each row
    assert held < table.spans.nbytes * 2 < path.stat().st_size / 5
    (row,) = table.read(123_456, 123_457)
    assert isinstance(row, dict) and row["answer"] == "123456"
    assert table.where(123_456).endswith("large.jsonl, line 123457")


def test_lines_are_counted_with_the_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 0}\r\n\n   \n{"n": 1}\nnonsense\n[2]\n{"n": 3}')
    table = JsonlTable(path)
    rows = table.read(0, 5)
    assert [row for row in rows if isinstance(row, dict)] == [{"n": 0}, {"n": 1}, {"n": 3}]
    assert [table.where(index).rpartition(" ")[2] for index in range(5)] == ["1", "4", "5", "6", "7"]
    assert isinstance(rows[2], BadRow) and rows[2].reason.startswith("not JSON")
    assert rows[3] == BadRow("a row is a JSON object, not list")


def test_a_json_array_is_read_as_rows(tmp_path: Path) -> None:
    rows = [{"a": 'brackets ] } and "quotes" \\', "b": [{"c": [1]}]}, {"a": "ü", "b": []}, {"a": "", "b": [{}]}]
    path = tmp_path / "array.json"
    for indent in (None, 2):
        path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
        assert JsonlTable(path).read(0, 3) == rows
    assert JsonlTable(path).where(1) == f"{path}, line 12"


def test_a_json_array_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('[{"a": 1}, {"a": 2}')
    with pytest.raises(DataError, match="cut.json is a JSON array without an end"):
        JsonlTable(tmp_path / "cut.json")


def test_parquet_is_read_by_row_groups_and_only_the_columns_asked_for(tmp_path: Path) -> None:
    table = ParquetTable(write_parquet(tmp_path / "a.parquet", NUMBERS, row_group_size=3), columns=["n"])
    assert table.read(2, 8) == [{"n": n} for n in range(2, 8)]
    assert list(table.columns or ()) == ["n", "text"]
    assert table.where(4).endswith("a.parquet, row 5")


def test_of_row_groups_over_the_limit_only_the_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_brorl.prompts.arrow_tables.CACHE_BYTES", 0)
    table = ParquetTable(write_parquet(tmp_path / "a.parquet", NUMBERS, row_group_size=3), columns=["n"])
    for index in (0, 9, 4, 5, 1):
        assert table.read(index, index + 1) == [{"n": index}]
        assert len(table._decoded) == 1


def test_a_saved_dataset_is_mapped_batch_by_batch(tmp_path: Path) -> None:
    folder = write_saved_dataset(tmp_path / "saved", NUMBERS, num_shards=2, batch_rows=2)
    tables = open_tables(dataset_files(folder, None), ["n", "text"])
    assert [tables.row(index) for index in range(10)] == NUMBERS[0::2] + NUMBERS[1::2]
    assert [number for number, _ in tables.scan()] == list(range(10))
    assert tables.where(6).endswith("data-00001-of-00002.arrow, row 2")


def test_an_arrow_file_with_a_footer_is_read_as_well(tmp_path: Path) -> None:
    import pyarrow

    table = pyarrow.Table.from_pylist(NUMBERS)
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    assert ArrowTable(tmp_path / "a.arrow").read(3, 6) == NUMBERS[3:6]


def write_arrow(path: Path, texts: list[str]) -> Path:
    import pyarrow

    table = pyarrow.Table.from_pylist([{"text": text} for text in texts])
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def test_a_text_that_lies_outside_its_mapped_file_is_refused(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["one", "three", "seventeen"])
    ends = np.array([0, 3, 8, 17], dtype=np.int32).tobytes()  # of the texts, one behind the other
    far = np.array([0, 3, 2**30, 17], dtype=np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(ends) == 1
    path.write_bytes(content.replace(ends, far))
    table = ArrowTable(path)
    assert table.read(0, 1) == [{"text": "one"}]
    with pytest.raises(DataError, match=r"a\.arrow cannot be read"):
        table.read(1, 2)


def test_names_of_columns_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["one"])
    path.write_bytes(path.read_bytes().replace(b"text", b"te\xff\xff"))
    with pytest.raises(DataError, match=r"a\.arrow cannot be read"):
        ArrowTable(path)


def test_files_follow_each_other_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, part in (("b", NUMBERS[4:]), ("a", NUMBERS[:4])):
        write_jsonl(tmp_path / f"{name}.jsonl", part)
    tables = open_tables(matching_files(f"{tmp_path}/*.jsonl"), ["n"])
    assert [row for _, row in tables.scan()] == NUMBERS
    assert tables.where(4).endswith("b.jsonl, line 1")


def test_a_split_of_a_folder_is_found_by_the_names_of_files_and_folders(tmp_path: Path) -> None:
    hub, saved = tmp_path / "hub", tmp_path / "saved"
    names = ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-00001")
    files = [write_parquet(hub / f"{name}.parquet", NUMBERS) for name in names]
    (hub / "README.md").write_text("a card")
    assert dataset_files(hub, None) == files[:2]
    assert dataset_files(hub, "test") == files[2:]
    for split in ("train", "test"):
        write_saved_dataset(saved / split, NUMBERS)
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert [path.parent.name for path in dataset_files(saved, None)] == ["train"]
    assert [path.parent.name for path in dataset_files(saved, "test")] == ["test"]
    lines = write_jsonl(tmp_path / "one" / "math.jsonl", NUMBERS)
    assert dataset_files(tmp_path / "one", None) == [lines]


@pytest.mark.parametrize(
    ("path", "split", "message"),
    [
        ("absent", None, "absent' is not a folder"),
        ("hub", "dev", "has no split 'dev'; set data.dataset_split to one of train"),
        ("empty", None, "has no dataset: no state.json"),
        ("half", None, "is not whole: state.json names data-00000-of-00001.arrow"),
    ],
)
def test_a_folder_that_is_no_dataset_is_an_error(tmp_path: Path, path: str, split: str | None, message: str) -> None:
    write_jsonl(tmp_path / "hub" / "train.jsonl", NUMBERS)
    (tmp_path / "empty").mkdir()
    (write_saved_dataset(tmp_path / "half", NUMBERS) / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=message):
        dataset_files(tmp_path / path, split)


@pytest.mark.parametrize("name", ["bad.parquet", "bad.arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 this is not what the name says PAR1")
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        open_tables([tmp_path / name], ["n"])


def test_a_path_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches it as a pattern"):
        matching_files(f"{tmp_path}/*.jsonl")
    with pytest.raises(DataError, match="is a folder: write source=dataset"):
        matching_files(str(tmp_path))
