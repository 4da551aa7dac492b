"""Stand-in for trackio (signatures of 0.43.0)."""

from __future__ import annotations

from typing import Any

from written import note


def init(
    project: str,
    name: str | None = None,
    group: str | None = None,
    space_id: str | None = None,
    config: dict[str, Any] | None = None,
    resume: str = "never",
    embed: bool = True,
) -> None:
    note("trackio", "init", project=project, name=name)


def log(metrics: dict[str, Any], step: int | None = None) -> None:
    for name, value in metrics.items():
        note("trackio", "log", name=name, value=value, step=step)


def finish() -> None:
    note("trackio", "end")
