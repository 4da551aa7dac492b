"""Lines of JSON by row number: an index in memory, rows on disk, damage named."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.jsonl_table import JsonlTable
from nemo_brorl.prompts.questions import BadRow


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
    assert table.locate_row(123_456).endswith("large.jsonl, line 123457")


def test_lines_are_counted_with_the_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 0}\r\n\n   \n{"n": 1}\nnonsense\n[2]\n{"n": 3}')
    table = JsonlTable(path)
    rows = table.read(0, 5)
    assert [row for row in rows if isinstance(row, dict)] == [{"n": 0}, {"n": 1}, {"n": 3}]
    assert [table.locate_row(index).rpartition(" ")[2] for index in range(5)] == ["1", "4", "5", "6", "7"]
    assert isinstance(rows[2], BadRow) and rows[2].reason.startswith("not JSON")
    assert rows[3] == BadRow("a row is a JSON object, not list")


def test_a_json_array_is_read_as_rows(tmp_path: Path) -> None:
    rows = [{"a": 'brackets ] } and "quotes" \\', "b": [{"c": [1]}]}, {"a": "ü", "b": []}, {"a": "", "b": [{}]}]
    path = tmp_path / "array.json"
    for indent in (None, 2):
        path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
        assert JsonlTable(path).read(0, 3) == rows
    assert JsonlTable(path).locate_row(1) == f"{path}, line 12"


def test_a_json_array_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('[{"a": 1}, {"a": 2}')
    with pytest.raises(DataError, match="cut.json is a JSON array without an end"):
        JsonlTable(tmp_path / "cut.json")
