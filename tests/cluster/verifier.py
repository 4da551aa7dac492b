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

    With `hold`, a folder: calls are counted. While there is a file `hold`, calls from the number that it holds on wait,
    or all of them.
    """
    if "hold" in payload:
        wait(Path(payload["hold"]))
    return float(sum(character.isupper() for character in response) >= 3)


def wait(folder: Path) -> None:
    """Count the calls of all processes, a byte each, and hold them while the folder says so."""
    calls, hold = folder / "calls", folder / "hold"
    with calls.open("ab") as file:
        file.write(b".")
    while hold.exists() and calls.stat().st_size >= int(hold.read_text() or 0):
        time.sleep(LOOK_S)
