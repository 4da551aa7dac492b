"""Load the tokenizer of a model folder, from `tokenizer.json` or from the files that transformers converts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import check_model_file, model_object

if TYPE_CHECKING:
    import tokenizers

MAX_GROWTH = 1000  # most characters, or tokens, that a part of a tokenizer may write for one
WRITTEN = ("content", "prepend", "single", "ids")
PARTS = ("normalizers", "processors", "decoders")
_OLD_FILES = frozenset(["tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"])


def load_backend(folder: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a model folder, which encodes every text whole and adds no padding.

    Raises ModelError when it is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    try:
        backend = _read_backend(path) if path.exists() else _convert_backend(folder)
        # A file that was saved after a training run may still cut every text, or fill it up.
        backend.no_truncation()
        backend.no_padding()
        backend.encode("1 + 1")
        tokens = backend.encode("1 + 1", add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit, ModelError):
        raise
    # The library's panics are no exceptions.
    except BaseException as error:
        raise ModelError(f"the tokenizer in {str(folder)!r} cannot be read: {error}") from error
    # transformers makes a tokenizer without tokens of an empty file.
    if not tokens:
        raise ModelError(
            f"the tokenizer in {str(folder)!r} gives no tokens for the text '1 + 1': its files are damaged"
        )
    return backend


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    settings = model_object(path)
    if "model" not in settings:
        raise ModelError(f"{path} is not a tokenizer: it has no 'model' entry")
    for name in ("normalizer", "post_processor", "decoder"):
        growth = _growth(settings.get(name))
        if growth > MAX_GROWTH:
            raise ModelError(f"{path}: its {name} writes up to {growth:,.0f} for one, {MAX_GROWTH} are allowed")
    return Tokenizer.from_file(str(path))


def _growth(part: Any) -> float:
    """Return how many characters or tokens a part of a tokenizer may write for one. A library without memory aborts."""
    if not isinstance(part, dict):
        return 1
    growth = 1.0
    for name, value in part.items():
        if name in WRITTEN and isinstance(value, str | list):
            growth *= max(len(value), 1)
        elif name in PARTS and isinstance(value, list):
            growth *= math.prod(map(_growth, value))
        elif name == "special_tokens" and isinstance(value, dict):
            growth *= max(map(_growth, value.values()), default=1)
    return growth


def _convert_backend(folder: Path) -> tokenizers.Tokenizer:
    """Convert the tokenizer of a model that ships only SentencePiece or vocabulary files, which is slow."""
    names = sorted(path.name for path in folder.iterdir())
    if not _OLD_FILES.intersection(names):
        found = ", ".join(names[:10]) or "nothing"
        raise ModelError(
            f"model folder {str(folder)!r} has no tokenizer (tokenizer.json, tokenizer.model); it holds {found}"
        )
    for path in folder.iterdir():
        # transformers would wait for a pipe, and follow any link
        if path.is_symlink() or not path.is_dir():
            check_model_file(path)
    from transformers import AutoTokenizer

    # Without this argument, transformers asks on the terminal whether code of the folder may run.
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
