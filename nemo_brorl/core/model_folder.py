"""Find the folder of a model that is on this machine, and read its files, which anybody may have written."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import SMALL, VAST, RecordError, open_record, record_bytes, record_object

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.files import why_unreadable, write_atomically

MODEL_REVISION = "model_revision.txt"  # file in a run folder with the commit of its model
MAX_JSON = 1 << 27  # largest JSON file, in bytes; a tokenizer may have tens of MiB
INDEX = "model.safetensors.index.json"


def local_model(model: str, setting: str = "policy.model") -> Path | None:
    """Return the folder that a setting names, or None for a Hugging Face name, `owner/name[@revision]`.

    A name is resolved later through the hub's cache. Raises ModelError for a path without a folder.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    # A wheel keeps the base models of its recipes here.
    shipped = Path(sys.prefix, "share/nemo_brorl", model)
    if not folder.is_absolute() and shipped.is_dir():
        return shipped
    if folder.is_file():
        raise ModelError(f"{setting}={model} is a file: set the folder that holds it, {setting}={folder.parent}")
    if "://" in model:
        name = "/".join(model.split("/")[3:5])
        raise ModelError(f"{setting}={model} is an address: set the name alone, {setting}={name}")
    is_name = hub_name(model, setting)[0].count("/") == 1 and not model.startswith((".", "~", "runs/"))
    if is_name and not folder.parent.is_dir():
        return None
    raise ModelError(
        f"{setting}={model}: there is no such folder. `make train` or `brorl base` makes a small model in "
        f"sft.new.output; or set {setting} to the folder or name of a Hugging Face model"
    )


def hub_name(model: str, setting: str = "policy.model") -> tuple[str, str | None]:
    """Return the name and the revision (branch, tag or commit) of a Hugging Face model `owner/name@revision`.

    The revision is None if the name has none. Raises ModelError for an empty one.
    """
    name, mark, revision = model.partition("@")
    if mark and not revision:
        raise ModelError(f"{setting}={model}: there is no revision after the @. Set {name}, or {name}@main")
    return name, revision or None


def cached_model(model: str) -> Path | None:
    """Return the folder of a Hugging Face model in the hub's cache, or None if its revision is not cached."""
    name, revision = hub_name(model)
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    head = cache / "refs" / commit
    if head.is_file():
        commit = record_bytes(head, SMALL).decode("ascii", errors="replace").strip()
    folder = cache / "snapshots" / commit
    return folder if folder.is_dir() else None


def write_commit(run_folder: Path, model: str, model_folder: Path) -> None:
    """Record in a run folder which commit of a Hugging Face model was downloaded, if it was."""
    if model_folder.parent.name == "snapshots":
        write_atomically(run_folder / MODEL_REVISION, f"{hub_name(model)[0]}@{model_folder.name}\n")


def recorded_commit(run_folder: Path, model: str) -> str | None:
    """Return the commit of a Hugging Face model that a run has recorded, or None."""
    try:
        text = record_bytes(run_folder / MODEL_REVISION, SMALL).decode("utf-8", errors="replace")
    except (OSError, RecordError):
        return None
    name, _, commit = text.strip().partition("@")
    is_commit = re.fullmatch("[0-9a-f]{40}", commit) is not None
    return commit if is_commit and name == hub_name(model)[0] else None


def model_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder, {} if there is no such file. Raises ModelError."""
    try:
        return record_object(path, MAX_JSON)
    except FileNotFoundError:
        return {}
    except (OSError, RecordError) as error:
        raise as_model_error(path, error) from error


def shard_names(folder: Path) -> dict[str, str] | None:
    """Return which file of a folder holds each tensor, None without an index. Raises ModelError for files elsewhere."""
    index = folder / INDEX
    if not index.exists():
        return None
    names = model_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(map(_is_name, names.values())):
        raise ModelError(f"{index}: its weight_map does not name a file of this folder for each tensor")
    return names


def _is_name(file: Any) -> bool:
    return isinstance(file, str) and file.strip(".") != "" and Path(file).name == file


def check_model_file(path: Path) -> None:
    """Raise ModelError unless a file is a regular one inside its model folder."""
    try:
        open_record(path, VAST).close()
    except (OSError, RecordError) as error:
        raise as_model_error(path, error) from error


def as_model_error(path: Path, error: Exception) -> ModelError:
    """Return a ModelError for a file of a model folder that cannot be read."""
    return ModelError(f"{path} cannot be read: {why_unreadable(error)}")
