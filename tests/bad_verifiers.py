"""A verifier plugin that misbehaves on command, for tests of the pool."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from nemo_brorl.rewards import VERIFIERS, Scorer


def misbehave(payload: Mapping[str, Any], response: str) -> float:
    """Do what the response says; `count` counts its calls in the payload's file."""
    if "hang" in response:
        time.sleep(3600)
    if "crash" in response:
        os._exit(3)
    if "raise" in response:
        raise LookupError("told to")
    if "nan" in response:
        return float("nan")
    with open(payload["log"], "a", encoding="utf-8") as log:
        log.write(response + "\n")
    return 1.0


VERIFIERS["misbehave"] = Scorer(misbehave, lambda payload: iter(()), lambda: None)
