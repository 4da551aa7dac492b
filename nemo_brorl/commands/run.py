"""Run commands that take the settings of a run.

The command line is parsed and checked in about a second, without torch. Then the command loads what it needs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from nemo_brorl.config.load import DEFAULT_CONFIG, CommandLine, load_config, parse_command_line
from nemo_brorl.config.memory import check_memory
from nemo_brorl.config.model_rules import check_model_rules
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.same_run import RECORD, recorded_settings, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import resolve_sizes
from nemo_brorl.core.console import Console, setup_logging, stop_log
from nemo_brorl.core.errors import BroRLError, ModelError
from nemo_brorl.core.machine import this_machine
from nemo_brorl.core.model_folder import hub_name, local_model, recorded_commit
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.template_files import prints_date
from nemo_brorl.core.weight_files import check_model_files

# patterns of the files to download from a hub repository
MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]

Body = Callable[[BroRLConfig, CommandLine], int]  # a command, from its settings to its exit code


def run_command(
    command: str,
    description: str | None,
    argv: Sequence[str],
    body: Body,
    default_config: str = DEFAULT_CONFIG,
) -> int:
    """Run `body` with the settings of a command line, by default of `default_config`, and return its exit code."""
    line = parse_command_line(argv, command, (description or "").strip(), default_config)
    return body(configured(line), line)


def configured(line: CommandLine) -> BroRLConfig:
    """Return the settings of a command line, and allow what they name in this process, which begins a log of its own.

    Raises ConfigError.
    """
    # With it, every actor would compile each imported module at every start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    stop_log()
    setup_logging()
    config = load_config(*line)
    from nemo_brorl.scoring.grader_settings import configure  # imported only for valid settings

    configure(config)
    return config


def sized(config: BroRLConfig, console: Console, with_policy: bool = True) -> tuple[BroRLConfig, Path]:
    """Return the settings with all automatic sizes (ranks, engines, batches, caches) chosen, and the model's folder.

    Prints each chosen size. A resumed run keeps the sizes that it started with. Without a policy, the run folder is not
    looked at. Raises ModelError, ConfigError for settings that do not fit the model, or ResourceError for a run that
    does not fit into this machine's memory.
    """
    folder = resolve_model(config)
    check_model_files(folder)
    check_model_rules(config, folder)
    config = with_sizes_of_run(config) if with_policy else config
    config, sizes = resolve_sizes(config, read_model_shape(folder), this_machine(), with_policy)
    check_rules(config)
    config = with_template_date(config, folder, console, with_policy)
    for size in sizes:
        if not with_policy and not size.setting.startswith("generation."):
            continue
        console.line(f"chosen: {size}")
    check_memory(config, with_policy, folder)
    return config, folder


def with_template_date(config: BroRLConfig, folder: Path, console: Console, with_policy: bool = True) -> BroRLConfig:
    """Return the settings with the day that the model's chat template prints, if it prints one.

    It is the day that the run started, also for an evaluation of the weights that the run wrote. A run that recorded
    none goes on without.
    """
    if config.data.template_date is not None or not prints_date(folder):
        return config
    is_begun = (Path(config.exp_manager.explicit_log_dir) / RECORD).is_file()
    if is_begun and with_policy and not config.evaluation.checkpoint:
        return config
    day = date.today().isoformat()
    with contextlib.suppress(OSError, BroRLError):
        day = str(recorded_settings(_record_of(config, folder)).get("data.template_date") or day)
    console.line(f"chosen: data.template_date={day} (the chat template prints a date)")
    return replace(config, data=replace(config.data, template_date=day))


def _record_of(config: BroRLConfig, folder: Path) -> Path:
    """Return where the run that wrote the weights of this evaluation has recorded its settings, if a run did."""
    written = Path(config.evaluation.checkpoint).absolute() if config.evaluation.checkpoint else folder.absolute()
    records = [parent / RECORD for parent in (written, *written.parents[:2])]
    return next((record for record in records if record.is_file()), records[0])


def resolve_model(config: BroRLConfig, name: str | None = None, setting: str = "policy.model") -> Path:
    """Return the folder of `policy.model`, or of the model that another setting names.

    It is a local one, or a Hugging Face model downloaded into the hub's cache. A run that has recorded a commit of its
    policy's model gets that one. Raises ModelError.
    """
    model = name or config.policy.model
    folder = local_model(model, setting)
    if folder is not None:
        return folder
    hub_model, revision = hub_name(model)
    if model == config.policy.model:
        revision = recorded_commit(Path(config.exp_manager.explicit_log_dir), model) or revision
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_model, revision=revision, allow_patterns=MODEL_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"{setting}={model} is no folder here and could not be downloaded: {error}") from error
