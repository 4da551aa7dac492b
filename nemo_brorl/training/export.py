"""Checkpoints as Hugging Face folders: which checkpoint, and whether a folder holds it already."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.checkpoint import MARKER, Checkpoints

RECORD = "converted.json"  # in the folder: which checkpoint it was made of


def newest_checkpoint(folder: Path, setting: str) -> Path:
    """A step_K folder itself, or the newest complete one in a checkpoints folder. Raises CheckpointError when it is not
    complete, or there is none."""
    if (folder / MARKER).is_file():
        complete = [found for found in Checkpoints(folder.parent, 1).complete() if found.name == folder.name]
    else:
        complete = Checkpoints(folder, 1).complete()
    if not complete:
        raise CheckpointError(f"{folder} holds no complete checkpoint: write {setting}=RUN/checkpoints/step_K")
    return complete[0]


def empty(folder: Path, setting: str) -> Path:
    """The folder, if nothing is in it. Raises CheckpointError."""
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{setting}={folder} is there and not empty: delete it or write another folder")
    return folder


def is_converted(checkpoint: Path, folder: Path) -> bool:
    """Whether `folder` was made of this checkpoint, and not of another one of the same name."""
    try:
        return json.loads((folder / RECORD).read_text()) == _identity(checkpoint)
    except (OSError, ValueError):
        return False


def convert_into(checkpoint: Path, folder: Path, export: Callable[[Path], None]) -> None:
    """Have the weights written beside `folder`, then put in its place: a conversion that is stopped leaves nothing
    there."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    export(partial)
    (partial / RECORD).write_text(json.dumps(_identity(checkpoint), indent=1) + "\n")
    if folder.exists():
        folder.rmdir()  # `empty` has looked
    os.replace(partial, folder)


def _identity(checkpoint: Path) -> dict[str, str]:
    """A checkpoint that is made anew has another marker."""
    marker = checkpoint / MARKER
    digest = hashlib.blake2b(marker.read_bytes() + str(marker.stat().st_mtime_ns).encode(), digest_size=16).hexdigest()
    return {"checkpoint": str(checkpoint.absolute()), "marker": digest}
