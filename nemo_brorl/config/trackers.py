"""Declare the run folder and the trackers that metrics go to: NeMo's exp_manager."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.declare import setting

NEEDED_BY_LOGGERS = {
    "wandb": ("project", "name"),
    "mlflow": (),
    "dllogger": (),
    "clearml": (),
    "neptune": ("project", "name"),
    "swanlab": ("project",),
    "trackio": ("project",),
}
PACKAGES = {"dllogger": "git+https://github.com/NVIDIA/dllogger"}  # those that are not called like their logger
EXAMPLES = {"project": "brorl", "name": "first"}
SECRETS = ("api_key", "api_token", "token", "password")


@dataclass
class ExpManagerConfig:
    """Handed to NeMo's exp_manager, plus `explicit_log_dir`: the run folder."""

    explicit_log_dir: str = setting("runs/brorl_cpu", "run folder")
    resume_if_exists: bool = setting(True, "the same command continues the run")
    create_tensorboard_logger: bool = setting(True, "metrics as TensorBoard events in the run folder")
    create_wandb_logger: bool = setting(False, "metrics to Weights & Biases")
    wandb_logger_kwargs: dict[str, Any] = setting({}, "arguments of its logger: name and project at least")
    create_mlflow_logger: bool = setting(False, "metrics to MLflow")
    mlflow_logger_kwargs: dict[str, Any] = setting(
        {}, "arguments of its logger: experiment_name, tracking_uri, …; without an address RUN/mlflow.db"
    )
    create_dllogger_logger: bool = setting(False, "metrics to NVIDIA's DLLogger")
    dllogger_logger_kwargs: dict[str, Any] = setting({}, "json_file (RUN/nemo/dllogger.json), stdout, verbose")
    create_clearml_logger: bool = setting(False, "metrics to ClearML")
    clearml_logger_kwargs: dict[str, Any] = setting({}, "arguments of its logger: project, task, tags, …")
    create_neptune_logger: bool = setting(False, "metrics to Neptune; its key is in NEPTUNE_API_TOKEN")
    neptune_logger_kwargs: dict[str, Any] = setting({}, "arguments of its logger: name and project at least")
    create_swanlab_logger: bool = setting(False, "metrics to SwanLab, not through NeMo")
    swanlab_logger_kwargs: dict[str, Any] = setting({}, "arguments of swanlab.init: project at least; mode, …")
    create_trackio_logger: bool = setting(False, "metrics to trackio, not through NeMo")
    trackio_logger_kwargs: dict[str, Any] = setting({}, "arguments of trackio.init: project at least; name, …")

    def violations(self) -> Iterator[str]:
        for logger, needed in NEEDED_BY_LOGGERS.items():
            if getattr(self, f"create_{logger}_logger"):
                yield from self._wrong_logger(logger, needed)

    def _wrong_logger(self, logger: str, needed: Sequence[str]) -> Iterator[str]:
        """What is missing of a logger that is asked for."""
        given = getattr(self, f"{logger}_logger_kwargs")
        asked, kwargs = f"exp_manager.create_{logger}_logger=true", f"exp_manager.{logger}_logger_kwargs"
        for name in needed:
            if name not in given:
                yield f"{asked} needs {kwargs}.{name}: write for example {kwargs}.{name}={EXAMPLES[name]}"
        for name in given:
            if name in SECRETS:
                yield f"{kwargs}.{name} would be in config.yaml: leave it out, and set {logger}'s environment variable"
        if importlib.util.find_spec(logger) is None:
            package = PACKAGES.get(logger, logger)
            yield f"{asked} needs the package {logger}, which is not installed: pip install {package}, or write false"
