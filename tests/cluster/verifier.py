"""A verifier that a random model can please: it wants capital letters. And that can be made to wait, so that a step is
under way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOOK_S = 0.1


def wants_capitals(payload: Mapping[str, Any], response: str) -> float:
    """1 for three capital letters, which somewhat less than half of random texts have.

    With `hold`, a folder: from the call `hold_from` on it waits for as long as there is a file `hold`.
    """
    if "hold" in payload:
        wait(Path(payload["hold"]), payload["hold_from"])
    return float(sum(character.isupper() for character in response) >= 3)


def wait(folder: Path, first: int) -> None:
    """Count the calls of all processes, a byte each, and hold those from `first` on."""
    with (folder / "calls").open("ab") as calls:
        calls.write(b".")
    while (folder / "hold").exists() and (folder / "calls").stat().st_size >= first:
        time.sleep(LOOK_S)
