"""Calls of the stand-ins, a line of JSON each, in the file that FAKE_TRACKERS names."""

from __future__ import annotations

import json
import os
from typing import Any


def note(tracker: str, call: str, **arguments: Any) -> None:
    with open(os.environ["FAKE_TRACKERS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"tracker": tracker, "call": call, **arguments}, default=str) + "\n")
