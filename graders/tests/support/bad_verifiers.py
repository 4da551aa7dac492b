"""A user's verifier that misbehaves on command, for tests of the pool."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MISBEHAVE = "graders.tests.support.bad_verifiers:misbehave"
SLOW = "graders.tests.support.bad_verifiers:take"
HALF = "graders.tests.support.bad_verifiers:half"


def misbehave(payload: Mapping[str, Any], response: str) -> float:
    """Do what the response says; `count` counts its calls in the payload's file."""
    if "program" in response:
        program = subprocess.Popen(["sleep", "3600"])
        Path(payload["log"]).write_text(str(program.pid), encoding="utf-8")
    if "hang" in response:
        time.sleep(3600)
    if "memory" in response:
        bytearray(2**40)
    if "crash" in response:
        os._exit(3)
    if "raise" in response:
        raise LookupError("told to")
    if "nan" in response:
        return float("nan")
    with open(payload["log"], "a", encoding="utf-8") as log:
        log.write(response + "\n")
    return 1.0


def take(payload: Mapping[str, Any], response: str) -> float:
    """Wait for the seconds that the response says."""
    time.sleep(float(response))
    return 1.0


def half(payload: Mapping[str, Any], response: str) -> float:
    """Return a score of one half."""
    return 0.5
