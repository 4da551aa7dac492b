"""A path means a file, those that match a pattern, or one split of a dataset folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.find_files import dataset_files, matching_files
from tests.unit.prompts.files import write_jsonl, write_parquet, write_saved_dataset

NUMBERS = [{"n": n, "text": f"row {n}"} for n in range(10)]


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


def test_a_path_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches it as a pattern"):
        matching_files(f"{tmp_path}/*.jsonl")
    with pytest.raises(DataError, match="is a folder: set source=dataset"):
        matching_files(str(tmp_path))
