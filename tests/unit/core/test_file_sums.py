"""Sums of files: what was cut off, changed or taken away is named."""

from pathlib import Path

import pytest

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.file_sums import (
    SUMS,
    FileSum,
    all_damage,
    damage,
    file_sum,
    read_sums,
    share_of,
    sums_as_json,
    sums_from_json,
    write_sums,
)

CHECK = 0xCBF43926  # crc32 of "123456789", the check value of the parameters that zlib has


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "digits"
    path.write_bytes(b"123456789")
    return path


def test_a_sum_is_size_and_crc32(path: Path) -> None:
    assert file_sum(path) == FileSum(9, CHECK)


def test_a_file_of_many_pieces_has_the_sum_of_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_brorl.core.file_sums._PIECE_BYTES", 2)
    assert file_sum(path) == FileSum(9, CHECK)


def test_one_flipped_bit_shows(path: Path) -> None:
    before = file_sum(path)
    assert damage(path, before) == ""
    path.write_bytes(b"123457789")  # "6" with its lowest bit flipped
    assert damage(path, before) == f"{path} holds other bytes than were written (crc32)"
    assert damage(path, FileSum(9, None)) == "", "its bytes are not looked at"


def test_all_damaged_files_are_named_and_no_others(path: Path) -> None:
    (path.parent / "whole").write_bytes(b"")
    sums = {name: file_sum(path.parent / name) for name in ("digits", "whole")}
    sums["gone"] = FileSum(3, 0)
    path.write_bytes(b"1234")
    folder = path.parent
    assert all_damage(folder, sums) == [
        f"{folder}/digits has 4 of 9 bytes",
        f"{folder}/gone cannot be read (No such file or directory)",
    ]


def test_sums_are_read_as_they_were_written_and_sizes_of_earlier_versions_too(path: Path) -> None:
    sums = {"digits": file_sum(path), "policy/large": FileSum(7, None)}
    write_sums(path.parent, sums)
    assert read_sums(path.parent) == sums
    assert dict(sums_from_json(sums_as_json(sums))) == sums
    assert dict(sums_from_json('{"state.json": 2}')) == {"state.json": FileSum(2, None)}


def test_a_folder_of_an_earlier_version_has_no_sums_and_damaged_ones_are_one_message(tmp_path: Path) -> None:
    assert read_sums(tmp_path) == {}
    for text in ("", "{", "[]", '{"a": [1]}', '{"a": [1, "xyz"]}', '{"a": null}'):
        (tmp_path / SUMS).write_text(text)
        with pytest.raises(CheckpointError, match=r"checksums.json is damaged"):
            read_sums(tmp_path)


def test_every_file_is_looked_at_by_one_rank() -> None:
    names = ["d", "a", "c", "b", "e"]
    shares = [list(share_of(names, rank, 2)) for rank in range(2)]
    assert shares == [["a", "c", "e"], ["b", "d"]]
