"""Files that a reader, or a program that is started again, finds whole or as they were before."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str, is_synced: bool = False) -> Path:
    """Replace a file's text, in UTF-8. `is_synced`: it is on the disk afterwards, even if the machine loses power. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        return aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
