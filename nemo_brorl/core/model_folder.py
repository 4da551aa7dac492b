"""Find the folder of a model that is on this machine, and read its files, which anybody may have written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import VAST, RecordError, open_record, record_object

from nemo_brorl.core.errors import ModelError

MAX_JSON = 1 << 29  # largest JSON file, in bytes; a tokenizer may have tens of MiB


def local_model(model: str) -> Path | None:
    """Return the folder that `policy.model` names, or None for a Hugging Face name `owner/name`.

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
        raise ModelError(f"policy.model={model} is a file: set the folder that holds it, policy.model={folder.parent}")
    if "://" in model:
        name = "/".join(model.split("/")[3:5])
        raise ModelError(f"policy.model={model} is an address: set the name alone, policy.model={name}")
    is_name = model.count("/") == 1 and not model.startswith((".", "~", "runs/"))
    if is_name and not folder.parent.is_dir():
        return None
    raise ModelError(
        f"policy.model={model}: there is no such folder. `make train` or `brorl base` makes a small model in "
        "sft.new.output; or set policy.model to the folder or name of a Hugging Face model"
    )


def model_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder, {} if there is no such file. Raises ModelError."""
    try:
        return record_object(path, MAX_JSON)
    except FileNotFoundError:
        return {}
    except (OSError, RecordError) as error:
        raise as_model_error(path, error) from error


def check_weights(path: Path) -> None:
    """Raise ModelError unless a file of weights is a regular file inside its model folder."""
    try:
        open_record(path, VAST).close()
    except (OSError, RecordError) as error:
        raise as_model_error(path, error) from error


def as_model_error(path: Path, error: Exception) -> ModelError:
    """Return a ModelError for a file of a model folder that cannot be read."""
    text = str(error)
    return ModelError(text if text.startswith(str(path)) else f"{path} cannot be read: {text}")
