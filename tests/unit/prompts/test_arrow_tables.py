"""Parquet and Arrow by row number: only what is asked for is decoded, and damage is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.arrow_tables import ArrowTable, ParquetTable
from tests.unit.prompts.files import write_parquet

NUMBERS = [{"n": n, "text": f"row {n}"} for n in range(10)]


def test_parquet_is_read_by_row_groups_and_only_the_columns_asked_for(tmp_path: Path) -> None:
    table = ParquetTable(write_parquet(tmp_path / "a.parquet", NUMBERS, row_group_size=3), columns=["n"])
    assert table.read(2, 8) == [{"n": n} for n in range(2, 8)]
    assert list(table.columns or ()) == ["n", "text"]
    assert table.locate_row(4).endswith("a.parquet, row 5")


def test_of_row_groups_over_the_limit_only_the_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_brorl.prompts.arrow_tables.CACHE_BYTES", 0)
    table = ParquetTable(write_parquet(tmp_path / "a.parquet", NUMBERS, row_group_size=3), columns=["n"])
    for index in (0, 9, 4, 5, 1):
        assert table.read(index, index + 1) == [{"n": index}]
        assert len(table._decoded) == 1


@pytest.mark.parametrize(("kind", "value"), [("date32", 2**30), ("duration[s]", 2**62), ("time zone", 0)])
def test_a_value_that_python_cannot_hold_is_damage_of_its_file(kind: str, value: int, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    mars = pyarrow.timestamp("us", tz="Mars/Olympus")
    values = pyarrow.array([value], mars if kind == "time zone" else pyarrow.type_for_alias(kind))
    pyarrow.parquet.write_table(pyarrow.table({"answer": values}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        ParquetTable(tmp_path / "a.parquet", None).read(0, 1)


def test_a_row_group_of_less_than_no_rows_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", NUMBERS[:1])
    content = path.read_bytes()
    # Thrift's varint of 1 becomes that of -1, for the number of rows between the row group's size and its offset.
    assert content.count(b"\x16\x02\x26\x08") == 1
    path.write_bytes(content.replace(b"\x16\x02\x26\x08", b"\x16\x01\x26\x08"))
    with pytest.raises(DataError, match="less than no rows"):
        ParquetTable(path, None)


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
