"""Stand-in for swanlab (signatures of 0.10.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from written import note


def init(
    *,
    reinit: bool | None = None,
    log_dir: str | None = None,
    mode: str | None = None,
    workspace: str | None = None,
    project: str | None = None,
    name: str | None = None,
    resume: str | bool | None = None,
    config: Any = None,
) -> None:
    note("swanlab", "init", project=project, mode=mode, log_dir=log_dir)


def log(data: Mapping[str, Any], step: int | None = None) -> None:
    for name, value in data.items():
        note("swanlab", "log", name=name, value=value, step=step)


def finish(state: str | None = None, error: str | None = None) -> None:
    note("swanlab", "end")
