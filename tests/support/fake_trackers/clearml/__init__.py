"""Stand-in for clearml (signatures of 2.0)."""

from __future__ import annotations

from typing import Any

from written import note


class Reports:
    def report_scalar(self, title: str, series: str, value: float, iteration: int) -> None:
        note("clearml", "log", name=f"{title}/{series}", value=value, step=iteration)


class Task:
    name = "task"
    id = "1"

    @classmethod
    def init(cls, project_name: str, task_name: str, **others: Any) -> Task:
        note("clearml", "init", project=project_name, task=task_name)
        return cls()

    def get_logger(self) -> Reports:
        return Reports()

    def mark_completed(self) -> None:
        note("clearml", "end")


class OutputModel:
    pass
