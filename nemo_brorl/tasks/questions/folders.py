"""Which files a path means: a file, a pattern, or a Hugging Face dataset folder on disk.

Two kinds of folder: what `Dataset.save_to_disk` and `DatasetDict.save_to_disk` write (arrow files named in
`state.json`), and what lies on the hub (`.parquet`, `.jsonl` or `.json` files, told apart by the name of their split).
"""

from __future__ import annotations

import glob
import json
import re
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import DataError

DEFAULT_SPLIT = "train"
SPLIT_WORDS = ("train", "training", "test", "testing", "validation", "valid", "dev", "val", "eval")
HUB_SUFFIXES = (".parquet", ".jsonl", ".json")  # the first kind that is there is read
NOT_ROWS = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")


def matching_files(path: str) -> list[Path]:
    """A file, or all that a pattern matches, sorted. Raises DataError when there is none."""
    if Path(path).is_file():
        return [Path(path)]
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder: write source=dataset to read a dataset folder, or a pattern of files such as "
            f"{path}/*.jsonl"
        )
    found = sorted(Path(name) for name in glob.glob(path, recursive=True) if Path(name).is_file())
    if not found:
        raise DataError(f"{path!r} is not a file, and no file matches it as a pattern")
    return found


def dataset_files(folder: Path, split: str | None) -> list[Path]:
    """The files of one split of a dataset folder. `split` null: train where there is one, else everything.

    Raises DataError, with the splits there are, when it cannot be found.
    """
    if not folder.is_dir():
        raise DataError(
            f"{str(folder)!r} is not a folder; data.source=dataset reads the folder of a Hugging Face dataset on disk"
        )
    if (folder / "dataset_dict.json").is_file():
        folder = folder / _chosen(folder, split, _read_json(folder / "dataset_dict.json").get("splits", []))
    if (folder / "state.json").is_file():
        return _saved_files(folder)
    return _hub_files(folder, split)


def _saved_files(folder: Path) -> list[Path]:
    names = [entry["filename"] for entry in _read_json(folder / "state.json").get("_data_files", [])]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        raise DataError(
            f"{folder} is not whole: state.json names {', '.join(missing) or 'no files'}; save the dataset again"
        )
    return [folder / name for name in names]


def _hub_files(folder: Path, split: str | None) -> list[Path]:
    for suffix in HUB_SUFFIXES:
        found = sorted(
            path for path in folder.rglob(f"*{suffix}") if path.name not in NOT_ROWS and not path.name.startswith(".")
        )
        if not found:
            continue
        splits = {path: _split_of(path, folder) for path in found}
        names = sorted({name for name in splits.values() if name is not None})
        if not names and split is None:
            return found
        wanted = _chosen(folder, split, names)
        return [path for path in found if splits[path] == wanted]
    raise DataError(f"{folder} has no dataset: no state.json (save_to_disk) and no {', '.join(HUB_SUFFIXES)} files")


def _split_of(path: Path, folder: Path) -> str | None:
    """`data/train-00000-of-00002.parquet` and `train/0000.parquet` are of the split train; None where no name says
    so."""
    for part in reversed(path.relative_to(folder).with_suffix("").parts):
        word = re.split(r"[-_.]", part)[0].lower()
        if word in SPLIT_WORDS:
            return word
    return None


def _chosen(folder: Path, split: str | None, names: list[str]) -> str:
    wanted = split or (DEFAULT_SPLIT if DEFAULT_SPLIT in names or len(names) != 1 else names[0])
    if wanted not in names:
        raise DataError(
            f"{folder} has no split {wanted!r}; set data.dataset_split to one of "
            f"{', '.join(names) or 'no named splits'}"
        )
    return wanted


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
