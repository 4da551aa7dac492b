"""Tests of reading JSON and files that others wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from brorl_graders.base.foreign import (
    MAX_LINE,
    MalformedError,
    RecordError,
    open_record,
    read_json,
    record_bytes,
    record_json,
    record_lines,
    record_object,
    record_text,
)

MANY = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "[" * 64 + "]" * 64,
        '{"a": "[[[\\"]]"}',
        json.dumps("[{" * 500 + "9" * 500),
        "[" + "[1], " * 500 + "1]",
        "1" * 300,
    ],
)
def test_json_within_the_bounds_is_read_as_ever(text: str) -> None:
    assert read_json(text.encode(), most_bytes=MANY) == read_json(text, most_bytes=MANY) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 65 + "]" * 65, "more than 64 lists and objects deep"),
        ('{"a":' * 65 + "1" + "}" * 65, "deep"),
        ("[" * 100_000, "deep"),
        ('["]]]]]", ' * 65 + "1" + "]" * 65, "deep"),
        ('["\\\\"]' + "[" * 65, "deep"),
        ("1" * 301, "a number of more than 300 digits"),
        ('{"scores": [-0.' + "1" * 301 + "]}", "digits"),
        ('{"score": 1, "score": 1}', "the key 'score' twice"),
        ('[{"a": 1, "b": [{"c": 0, "d": 1, "c": 1}]}]', "the key 'c' twice"),
        ('"' + "x" * MANY + '"', "1,048,578 bytes, 1,048,576 are allowed"),
    ],
)
def test_json_out_of_bounds_is_refused_before_it_is_parsed(text: str, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        read_json(text, most_bytes=MANY)


@pytest.mark.parametrize("data", [b"{", b"", b"\xff", b"[}"])
def test_what_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(data, most_bytes=MANY)


def test_a_byte_order_mark_and_half_surrogates_are_read_as_json_reads_them() -> None:
    assert read_json(b'\xef\xbb\xbf"\\ud800"', most_bytes=MANY) == "\ud800"


def test_a_file_of_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n[2]')
    (tmp_path / "link").symlink_to("a.json")
    assert record_bytes(tmp_path / "link", 12) == b'{"a": 1}\n[2]'
    assert list(record_lines(tmp_path / "a.json", 12)) == [b'{"a": 1}\n', b"[2]"]
    with pytest.raises(RecordError, match=r"a\.json cannot be read: it is not JSON"):
        record_json(tmp_path / "a.json", 12)
    with pytest.raises(RecordError, match="it has 12 bytes, 11 are allowed"):
        open_record(tmp_path / "a.json", 11)
    with pytest.raises(FileNotFoundError):
        open_record(tmp_path / "none", 11)
    with pytest.raises(IsADirectoryError):
        open_record(tmp_path, 11)


def test_what_is_no_regular_file_inside_its_folder_is_refused_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "private").write_text("secret")
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "private").symlink_to("../private")
    (folder / "pipe_by_link").symlink_to("pipe")
    for name, reason in (
        ("pipe", "no regular file"),
        ("pipe_by_link", "no regular file"),
        ("zero", "a link to /dev/zero, outside of its folder. Put a copy or a hard link there"),
        ("private", "outside of its folder"),
    ):
        with pytest.raises(RecordError, match=reason):
            open_record(folder / name, MANY)
    with pytest.raises(RecordError, match="outside of its folder"):
        open_record(folder / ".." / "run" / "private", MANY)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_an_error_of_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no file has this name"):
        open_record(tmp_path / name, MANY)


def test_snapshots_and_older_downloads_of_the_hub_link_to_its_blobs(tmp_path: Path) -> None:
    model = tmp_path / "models--org--name"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    (model / "blobs" / "hash").write_text('{"a": 1}')
    (snapshot / "config.json").symlink_to("../../blobs/hash")
    assert record_object(snapshot / "config.json", MANY) == {"a": 1}
    (tmp_path / "downloaded").mkdir()
    (tmp_path / "downloaded" / "config.json").symlink_to(model / "blobs" / "hash")
    assert record_object(tmp_path / "downloaded" / "config.json", MANY) == {"a": 1}
    (tmp_path / "other").write_text("{}")
    (snapshot / "other.json").symlink_to("../../../other")
    with pytest.raises(RecordError, match="outside of its folder"):
        record_object(snapshot / "other.json", MANY)


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"[1]")
    with pytest.raises(RecordError, match="it holds a list, not an object"):
        record_object(path, MANY)
    path.write_bytes(b"\xff")
    with pytest.raises(RecordError, match="no text in UTF-8"):
        record_text(path, MANY)
    path.write_bytes(b"[" * 1000)
    with pytest.raises(RecordError, match="it is not JSON .it is more than 64"):
        record_json(path, MANY)
    path.touch()
    os.truncate(path, MAX_LINE + 2)
    with pytest.raises(RecordError, match="a line has more than"):
        list(record_lines(path, 1 << 30))
