"""Find the folder of a model that is on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from nemo_brorl.core.errors import ModelError


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
    is_name = model.count("/") == 1 and not model.startswith((".", "~", "runs/"))
    if is_name and not folder.parent.is_dir():
        return None
    raise ModelError(
        f"policy.model={model}: there is no such folder. `make train` or `brorl base` makes a small model in "
        "sft.new.output; or set policy.model to the folder or name of a Hugging Face model"
    )
