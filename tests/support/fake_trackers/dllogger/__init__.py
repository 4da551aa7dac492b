"""Stand-in for NVIDIA's dllogger (signatures of 1.0.0)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from written import note


class Verbosity:
    OFF = -1
    DEFAULT = 0
    VERBOSE = 1


class JSONStreamBackend:
    def __init__(self, verbosity: int, filename: str, append: bool = False) -> None:
        self.filename = filename


class StdOutBackend:
    def __init__(self, verbosity: int) -> None:
        self.filename = ""


def init(backends: Sequence[Any]) -> None:
    note("dllogger", "init", files=[backend.filename for backend in backends])


def log(step: Any, data: dict[str, Any], verbosity: int = Verbosity.DEFAULT) -> None:
    for name, value in data.items():
        note("dllogger", "log", name=name, value=value, step=step)


def flush() -> None:
    note("dllogger", "end")
