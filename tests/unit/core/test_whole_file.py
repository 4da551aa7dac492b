"""Replacing a file's text at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.core.files import write_atomically


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path, is_synced: bool) -> None:
    (tmp_path / "a.json").write_text("old")
    assert write_atomically(tmp_path / "a.json", "größer\n", is_synced) == tmp_path / "a.json"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == "größer\n".encode()


def test_what_cannot_be_replaced_stays_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.json" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_atomically(tmp_path / "a.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
