"""Use NeMo in the driver: its `exp_manager` for loggers and run records, its `hydra_runner` as entry point.

Importing NeMo takes about four seconds of CPU (it brings Lightning). So settings are checked before this module is
imported, and the actors, which never import it, start meanwhile.

`exp_manager` gets its own folder below the run folder. When a run continues, it moves every plain file of its folder
into `run_K/`, whatever `resume_if_exists` says (`check_resume` in nemo/utils/exp_manager.py). In the run folder it
would take `metrics.jsonl` and `config.yaml` away. In its own folder it only rotates its own records: command line, git
state, NeMo's and Lightning's logs. Resuming is done by `checkpoint.py`, because NeMo searches only for Lightning's
checkpoints.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from brorl_graders.base.environment_values import literal, plain
from omegaconf import DictConfig, OmegaConf

from nemo_brorl.commands.trackers import ClearMLSink, LoggerSink, ModuleSink
from nemo_brorl.config.load import CommandLine, hydra_arguments, to_config
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger, setup_logging
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.files import naming
from nemo_brorl.core.quick_imports import quick_imports
from nemo_brorl.ports import MetricSink

# Log level of NeMo and Lightning on the console. Their messages concern a training loop that is not used here.
LIBRARY_LOG_LEVEL = logging.ERROR

logging.getLogger("nv_one_logger").setLevel(LIBRARY_LOG_LEVEL)
# NeMo imports Megatron-core, and transformers scikit-learn, for functions that the driver does not use.
with warnings.catch_warnings(), quick_imports("megatron", "sklearn"):
    warnings.simplefilter("ignore")  # import warnings about optional libraries that the driver does not need
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import Logger, MLFlowLogger
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from nemo.core.config import hydra_runner
    from nemo.utils import logging as nemo_logging
    from nemo.utils.exp_manager import exp_manager
    from nemo.utils.loggers import ClearMLLogger

log = get_logger(__name__)

Result = TypeVar("Result")

NEMO_FOLDER = "nemo"  # exp_manager's folder inside the run folder
NEMO_TRACKERS = ("wandb", "dllogger", "clearml", "neptune")  # trackers that exp_manager creates, besides TensorBoard


@dataclass(frozen=True)
class Experiment:
    """A training run as NeMo's exp_manager sees it: run folder and loggers."""

    log_dir: Path  # the run folder
    loggers: list[Logger]  # TensorBoard, W&B: `log_metrics(metrics, step)`, then `finalize("success")`


def open_experiment(config: BroRLConfig) -> Experiment:
    """Let NeMo's exp_manager create the run's loggers, and its own log files in `RUN_FOLDER/nemo`.

    Takes about 0.1 s and changes nothing else in the run folder. Lightning's Trainer is created because exp_manager
    attaches the loggers to it. The Trainer's loop never runs. Raises ResourceError when the folder cannot be written.
    """
    quieten()
    threading.excepthook = thread_ended
    run_folder = Path(config.exp_manager.explicit_log_dir)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[LightningEnvironment()],  # without it, Lightning demands one task per device in a Slurm job
    )
    folder = run_folder / NEMO_FOLDER
    with naming(folder):
        exp_manager(trainer, OmegaConf.create(literal(exp_manager_settings(config, folder))))
    quieten()
    return Experiment(run_folder, list(trainer.loggers))


def open_sinks(config: BroRLConfig, experiment: Experiment) -> list[MetricSink]:
    """Return the metric sinks of a run: exp_manager's loggers, and the trackers that it cannot create."""
    chosen = plain(config.exp_manager)
    sinks: list[MetricSink] = []
    for logger in experiment.loggers:
        if isinstance(logger, ClearMLLogger):
            sinks.append(ClearMLSink(logger))
        else:
            sinks.append(LoggerSink(logger))
    if chosen.wants("mlflow"):  # created here, because NeMo 3.0.0 passes Lightning's logger its `run_name` twice
        beside_the_run = f"sqlite:///{experiment.log_dir.absolute()}/mlflow.db"
        of_mlflow = {
            "experiment_name": "brorl",
            "tracking_uri": os.environ.get("MLFLOW_TRACKING_URI", beside_the_run),
            **chosen.arguments("mlflow"),
        }
        sinks.append(LoggerSink(MLFlowLogger(**of_mlflow)))
    if chosen.wants("swanlab"):
        arguments = {"log_dir": str(experiment.log_dir / "swanlog"), **chosen.arguments("swanlab")}
        sinks.append(ModuleSink("swanlab", arguments))
    if chosen.wants("trackio"):
        sinks.append(ModuleSink("trackio", {"embed": False, **chosen.arguments("trackio")}))
    return sinks


def exp_manager_settings(config: BroRLConfig, folder: Path) -> dict[str, object]:
    """Return the settings that are passed to NeMo's exp_manager."""
    chosen = config.exp_manager
    settings: dict[str, object] = {
        "explicit_log_dir": str(folder),
        "use_datetime_version": False,
        "resume_if_exists": False,  # this package resumes runs itself
        "create_tensorboard_logger": chosen.wants("tensorboard"),
        "create_checkpoint_callback": False,
        "create_preemption_callback": False,  # it would query the current CUDA device
        "log_step_timing": False,
    }
    defaults = {"dllogger": {"json_file": str(folder / "dllogger.json")}}
    for tracker in NEMO_TRACKERS:
        settings[f"create_{tracker}_logger"] = chosen.wants(tracker)
        settings[f"{tracker}_logger_kwargs"] = {**defaults.get(tracker, {}), **chosen.arguments(tracker)}
    return settings


def run_with_nemo(line: CommandLine, main: Callable[[BroRLConfig], Result]) -> Result:
    """Call `main` with the settings of a command line, composed by NeMo's `hydra_runner`, and return what it returns.

    The settings pass the schema and rules of `load_config`. A BroRLError of `main` is raised unchanged, where Hydra
    would print a traceback and exit. Takes about 0.2 s beyond importing NeMo. `run_with_nemo(line, open_experiment)`
    returns the experiment.
    """
    folder, name, overrides = hydra_arguments(*line)
    outcome: list[Result | BroRLError] = []
    root_handlers = list(logging.getLogger().handlers)

    def entered(composed: DictConfig) -> None:
        logging.getLogger().handlers[:] = root_handlers  # Hydra has replaced the handlers
        quieten()
        setup_logging()
        try:
            config = to_config(composed)
            check_rules(config)
            outcome.append(main(config))
        except BroRLError as error:
            outcome.append(error)

    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *overrides, "hydra.job.chdir=false"]  # hydra_runner reads sys.argv
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise exceptions unchanged
    try:
        hydra_runner(config_path=str(folder), config_name=name)(entered)()
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
    [result] = outcome
    if isinstance(result, BroRLError):
        raise result
    return result


def thread_ended(arguments: threading.ExceptHookArgs) -> None:
    """Handle an exception that ended a thread.

    If TensorBoard's writer cannot write, its logger may never learn of it, so this logs a warning. Other exceptions
    print Python's traceback.
    """
    is_tensorboards = type(arguments.thread).__module__.startswith("tensorboard")
    if is_tensorboards and isinstance(arguments.exc_value, OSError):
        log.warning("TensorBoard's events are no longer written: %s", arguments.exc_value)
    else:
        threading.__excepthook__(arguments)


def quieten() -> None:
    """Limit console output of NeMo, Lightning and Hydra to errors, and keep Python's warnings out of NeMo's log."""
    nemo_logging.setLevel(LIBRARY_LOG_LEVEL)
    nemo_logging.captureWarnings(False)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "nv_one_logger"):
        logging.getLogger(name).setLevel(LIBRARY_LOG_LEVEL)
    logging.getLogger().setLevel(logging.WARNING)
