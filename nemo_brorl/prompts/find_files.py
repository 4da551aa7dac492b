"""Find the files of a path: one file, all that match a pattern, or a Hugging Face dataset folder on disk.

Such folders are of two kinds. `Dataset.save_to_disk` and `DatasetDict.save_to_disk` write arrow files named in
`state.json`. Folders from the hub hold `.parquet`, `.jsonl` or `.json` files, with the split in their names.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import LARGE, record_object

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import why_unreadable

DEFAULT_SPLIT = "train"
SPLIT_WORDS = ("train", "training", "test", "testing", "validation", "valid", "dev", "val", "eval")
HUB_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")  # by priority; only files of the first one are read
NOT_ROWS = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")


def find_files(kind: str, path: str, dataset_split: str | None) -> list[Path]:
    """Return the data files of a source of questions, sorted. Raises DataError when there are none."""
    if kind == "dataset":
        return dataset_files(Path(path), dataset_split)
    return matching_files(path)


def matching_files(path: str) -> list[Path]:
    """Return the data file at `path`, or all files that match `path` as a pattern, sorted.

    Raises DataError when there is none.
    """
    if Path(path).is_file():
        return [Path(path)]
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder: set source=dataset to read a dataset folder, or a pattern of files such as "
            f"{path}/*.jsonl"
        )
    files = []
    for name in glob.glob(path, recursive=True):
        if Path(name).is_file():
            files.append(Path(name))
    if not files:
        raise DataError(f"{path!r} is not a file, and no file matches it as a pattern")
    return sorted(files)


def dataset_files(folder: Path, split: str | None) -> list[Path]:
    """Return the data files of one split in the folder of a Hugging Face dataset.

    `split=None`: the only split or else train, and all files if none of them names a split. Raises DataError, with the
    available splits, when the split is missing.
    """
    if not folder.is_dir():
        raise DataError(
            f"{str(folder)!r} is not a folder; data.source=dataset reads the folder of a Hugging Face dataset on disk"
        )
    if (folder / "dataset_dict.json").is_file():
        saved = _read_json(folder / "dataset_dict.json")
        folder = folder / _chosen(folder, split, saved.get("splits", []))
    if (folder / "state.json").is_file():
        return _saved_files(folder)
    return _hub_files(folder, split)


def _saved_files(folder: Path) -> list[Path]:
    files = []
    missing = []
    state = _read_json(folder / "state.json")
    for entry in state.get("_data_files", []):
        path = folder / entry["filename"]
        files.append(path)
        if not path.is_file():
            missing.append(entry["filename"])
    if missing or not files:
        raise DataError(
            f"{folder} is not whole: state.json names {', '.join(missing) or 'no files'}; save the dataset again"
        )
    return files


def _hub_files(folder: Path, split: str | None) -> list[Path]:
    for suffix in HUB_SUFFIXES:
        files: list[Path] = []
        by_split: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob(f"*{suffix}")):
            if path.name in NOT_ROWS or path.name.startswith("."):
                continue
            files.append(path)
            name = _split_of(path, folder)
            if name is not None:
                by_split.setdefault(name, []).append(path)
        if files and not by_split and split is None:
            return files
        if files:
            chosen = _chosen(folder, split, sorted(by_split))
            return by_split[chosen]
    raise DataError(f"{folder} has no dataset: no state.json (save_to_disk) and no {', '.join(HUB_SUFFIXES)} files")


def _split_of(path: Path, folder: Path) -> str | None:
    """Return the dataset split that a file's path names, or None if it names none.

    `data/train-00000-of-00002.parquet` and `train/0000.parquet` belong to the split train.
    """
    parts = path.relative_to(folder).with_suffix("").parts
    for part in reversed(parts):
        first, *_ = re.split(r"[-_.]", part)
        word = first.lower()
        if word in SPLIT_WORDS:
            return word
    return None


def _chosen(folder: Path, split: str | None, names: list[str]) -> str:
    only = names[0] if len(names) == 1 else None
    chosen = split or only or DEFAULT_SPLIT
    if chosen not in names:
        known = ", ".join(names) or "no named splits"
        raise DataError(f"{folder} has no split {chosen!r}; set data.dataset_split to one of {known}")
    return chosen


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return record_object(path, LARGE)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}") from error
