"""Stand-in for neptune (signatures of 1.14)."""

from __future__ import annotations

from typing import Any

from written import note

INTEGRATION = "source_code/integrations/pytorch-lightning"


class Series:
    def __init__(self, name: str) -> None:
        self.name = name

    def append(self, value: float, *, step: float | None = None) -> None:
        note("neptune", "log", name=self.name, value=value, step=step)

    def fetch(self) -> str:
        return "RUN-1"


class Run:
    def __getitem__(self, name: str) -> Series:
        return Series(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "training/status":
            note("neptune", "end", status=value)

    def wait(self) -> None:
        return

    def exists(self, path: str) -> bool:
        return True


def init_run(*, project: str | None = None, name: str | None = None, **others: Any) -> Run:
    note("neptune", "init", project=project, name=name)
    return Run()
