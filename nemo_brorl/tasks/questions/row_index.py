"""What was found out about large files of prompts, kept beside the run: which rows can be used, and where they are.

Looking through every row of a 10-GB file takes minutes at every start, requeued ones too, and finds the same each time.
It is kept as `RUN/prompts_index/KEY.npz`. The key is of everything that decides it: the files' names, sizes and times,
the settings, the code that reads rows. An index that cannot be read or written is done without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nemo_brorl.core.files import replacing
from nemo_brorl.core.logs import get_logger
from nemo_brorl.types import Int64, UInt64

log = get_logger(__name__)

FOLDER = "prompts_index"
MIN_BYTES = 1 << 26  # of files; smaller ones are looked through in a second
TASKS = Path(__file__).resolve().parents[1]
CODE = ("questions", "verifiers")  # folders beside each other that decide which rows can be used


@dataclass(frozen=True)
class RowIndex:
    """The usable rows of some files."""

    rows: Int64  # [usable rows] their numbers, ascending
    hashes: UInt64  # [usable rows] of their texts
    spans: Mapping[str, Int64]  # [rows, 2] by file: where every row is in it; only of lines of JSON
    num_left_out: int


def index_path(folder: Path, decides: Sequence[str]) -> Path:
    """Where the index is kept that these texts, and the code, decide."""
    text = "\n".join(decides)
    digest = hashlib.blake2b(text.encode(), digest_size=12)
    for name in CODE:
        for path in sorted((TASKS / name).rglob("*.py")):
            digest.update(path.read_bytes())
    return folder / f"{digest.hexdigest()}.npz"


def load_index(path: Path) -> RowIndex | None:
    """A kept index; None where there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as data:
            spans = {}
            for number, name in enumerate(data["files"]):
                spans[str(name)] = data[f"spans_{number}"]
            return RowIndex(data["rows"], data["hashes"], spans, int(data["num_left_out"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        log.warning("%s cannot be read (%s): the files are looked through again", path, error)
        return None


def save_index(path: Path, index: RowIndex) -> None:
    """Keep an index, whole or not at all."""
    arrays: dict[str, Any] = {
        "rows": index.rows,
        "hashes": index.hashes,
        "files": np.array(list(index.spans), dtype=str),
        "num_left_out": index.num_left_out,
    }
    for number, spans in enumerate(index.spans.values()):
        arrays[f"spans_{number}"] = spans
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            np.savez(aside, **arrays)
    except OSError as error:
        log.warning("%s cannot be written (%s): the next start looks through the files again", path, error)
