"""Stand-in for mlflow.tracking (signatures of mlflow-skinny 3.17.2)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from written import note

from mlflow.entities import Metric, Param


class MlflowClient:
    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self.tracking_uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> None:
        return

    def create_experiment(
        self, name: str, artifact_location: str | None = None, tags: dict[str, Any] | None = None
    ) -> str:
        note("mlflow", "create_experiment", name=name, uri=self.tracking_uri)
        return "1"

    def create_run(
        self,
        experiment_id: str,
        start_time: int | None = None,
        tags: dict[str, Any] | None = None,
        run_name: str | None = None,
    ) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id="run"))

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[Any] = (),
        synchronous: bool | None = None,
    ) -> None:
        for metric in metrics:
            note("mlflow", "log", name=metric.key, value=metric.value, step=metric.step)

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        note("mlflow", "end", status=status)
