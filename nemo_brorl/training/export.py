"""Conversion of checkpoints to Hugging Face folders: which checkpoint, and whether a folder already holds it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from brorl_graders.base.foreign import SMALL, record_json

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.marker import MARKER

RECORD = "converted.json"  # file in the folder that names its checkpoint


def newest_checkpoint(folder: Path, setting: str) -> Path:
    """Return a step_K folder itself, or the newest complete one in a folder of checkpoints.

    Raises CheckpointError when the step_K folder is not a complete checkpoint, or there is none.
    """
    is_step = (folder / MARKER).is_file()
    checkpoints = Checkpoints(folder.parent if is_step else folder, keep=1)
    for checkpoint in checkpoints.complete():
        if not is_step or checkpoint.name == folder.name:
            return checkpoint
    raise CheckpointError(f"{folder} holds no complete checkpoint. Set {setting}=RUN/checkpoints/step_K.")


def empty(folder: Path, setting: str) -> Path:
    """Return a folder for exported weights if it is empty or missing. Raises CheckpointError otherwise."""
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{setting}={folder}: this folder is not empty. Delete it, or set another folder.")
    return folder


def is_converted(checkpoint: Path, folder: Path) -> bool:
    """Return True if `folder` has weights exported from this checkpoint, not from another one of the same name."""
    try:
        record = record_json(folder / RECORD, SMALL)
        return record == _identity(checkpoint)
    except (OSError, ValueError):
        return False


def convert_into(
    checkpoint: Path,
    folder: Path,
    export: Callable[[Path], None],
) -> None:
    """Export weights into a folder next to `folder` and rename it, so that an interrupted export leaves nothing."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    export(partial)
    record = json.dumps(_identity(checkpoint), indent=1)
    (partial / RECORD).write_text(record + "\n")
    if folder.exists():
        # `empty` has checked that the folder is empty.
        folder.rmdir()
    os.replace(partial, folder)


def _identity(checkpoint: Path) -> dict[str, str]:
    """Return a checkpoint's path and a digest of the marker file that is written when the checkpoint is complete.

    A checkpoint that is written again has another digest.
    """
    marker = checkpoint / MARKER
    digest = hashlib.blake2b(marker.read_bytes(), digest_size=16)
    written_at = marker.stat().st_mtime_ns
    digest.update(str(written_at).encode())
    return {"checkpoint": str(checkpoint.absolute()), "marker": digest.hexdigest()}
