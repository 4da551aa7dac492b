"""Declare the run folder and the trackers that get metrics: NeMo's exp_manager."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.declare import path_setting, setting

# Trackers with their required arguments. All but swanlab and trackio are NeMo's.
TRACKERS: dict[str, tuple[str, ...]] = {
    "tensorboard": (),
    "wandb": ("project", "name"),
    "mlflow": (),
    "dllogger": (),
    "clearml": (),
    "neptune": ("project", "name"),
    "swanlab": ("project",),
    "trackio": ("project",),
}
_SWITCHES = tuple(f"create_{name}_logger" for name in TRACKERS)
_ARGUMENTS = tuple(f"{name}_logger_kwargs" for name in TRACKERS)
LOGGER_KEYS = (*_SWITCHES, *_ARGUMENTS)
# packages whose name differs from that of their logger
PACKAGES = {"dllogger": "git+https://github.com/NVIDIA/dllogger"}
EXAMPLES = {"project": "brorl", "name": "first"}
SECRETS = ("api_key", "api_token", "token", "password")


@dataclass
class ExpManagerConfig:
    """Settings of NeMo's exp_manager, and `explicit_log_dir`: the run folder."""

    explicit_log_dir: str = path_setting("runs/brorl_cpu", "run folder")
    resume_if_exists: bool = setting(True, "resume the run in an existing run folder")
    loggers: dict[str, Any] = setting(
        {"create_tensorboard_logger": True},
        "trackers of metrics. Their keys stand directly in exp_manager, with NeMo's names: "
        "exp_manager.create_wandb_logger=true, exp_manager.wandb_logger_kwargs={project: …, name: …} "
        "(docs/metrics.md)",
    )

    def wants(self, tracker: str) -> bool:
        """Return whether the settings switch a tracker of metrics on."""
        return bool(self.loggers.get(f"create_{tracker}_logger", False))

    def arguments(self, tracker: str) -> dict[str, Any]:
        """Return the arguments that the settings give a tracker of metrics."""
        return dict(self.loggers.get(f"{tracker}_logger_kwargs") or {})

    def violations(self) -> Iterator[str]:
        for key, value in self.loggers.items():
            is_switch = key.startswith("create_")
            if is_switch and not isinstance(value, bool):
                yield f"exp_manager.{key}={value} must be true or false, for example false"
            if not is_switch and value is not None and not isinstance(value, Mapping):
                yield f"exp_manager.{key}={value} must be a mapping, for example {{}}"
                return
        for tracker, needed in TRACKERS.items():
            if tracker != "tensorboard" and self.wants(tracker):
                yield from self._wrong_tracker(tracker, needed)

    def _wrong_tracker(self, tracker: str, needed: tuple[str, ...]) -> Iterator[str]:
        """Yield a message for everything that is missing or wrong for an experiment tracker that is on."""
        given = self.arguments(tracker)
        asked, kwargs = f"exp_manager.create_{tracker}_logger=true", f"exp_manager.{tracker}_logger_kwargs"
        for name in needed:
            if name not in given:
                yield f"{asked} needs {kwargs}.{name}: set for example {kwargs}.{name}={EXAMPLES[name]}"
        for name in given:
            if name in SECRETS:
                yield f"{kwargs}.{name} would be in config.yaml: leave it out, and set {tracker}'s environment variable"
        if importlib.util.find_spec(tracker) is None:
            package = PACKAGES.get(tracker, tracker)
            yield f"{asked} needs the package {tracker}, which is not installed: pip install {package}, or set false"


def with_loggers_beside(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as the user writes them in YAML, with the keys of NeMo's loggers directly in `exp_manager`."""
    own = dict(settings["exp_manager"])
    loggers = own.pop("loggers")
    return {**settings, "exp_manager": {**own, **loggers}}
