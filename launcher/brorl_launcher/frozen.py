r"""Freeze the settings and the code of a job in its run folder, so that a requeued job trains with the same ones.

RUN/launch/config.yaml: all settings, with absolute paths; values from the environment stand as their variables
RUN/launch/code/: the code as it was, with uncommitted changes and new files
RUN/launch/revision.txt: the commit, and the files that differed from it
RUN/launch/uncommitted.patch: that difference, if there is one
RUN/launch/job.sbatch: the job script
RUN/launch/command.txt: the command that rendered it
RUN/launch/jobs.jsonl: the jobs that were submitted

The folder is filled under another name and then renamed. An earlier launch of the run is kept as RUN/launch_1,
launch_2, … Only the user who launches may enter these folders.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from brorl_graders.base.environment_values import FromEnvironment
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from brorl_launcher.code_snapshot import CodeSnapshot
from brorl_launcher.launch_folder import PRIVATE, Folders
from nemo_brorl.config.load import to_config, to_yaml
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

Location = TypeVar("Location", str, str | None)


def freeze(
    folders: Folders,
    config: BroRLConfig,
    code: CodeSnapshot,
    script: str,
    command: str,
) -> None:
    """Write the launch folder of a run: its settings, a snapshot of the code and the Slurm job script.

    Also creates the folder for the job logs, which Slurm does not create. An earlier launch folder is renamed, not
    deleted.
    """
    partial = folders.run / "launch.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(PRIVATE, parents=True)
    (folders.run / "logs").mkdir(exist_ok=True)
    (partial / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    code.write(partial / "code")
    (partial / "revision.txt").write_text(f"{code.revision}\n", encoding="utf-8")
    if code.revision.patch:
        (partial / "uncommitted.patch").write_bytes(code.revision.patch)
    (partial / "job.sbatch").write_text(script, encoding="utf-8")
    (partial / "command.txt").write_text(f"{command}\n", encoding="utf-8")
    for earlier in folders.all_launches():
        with contextlib.suppress(PermissionError):  # another user's
            earlier.chmod(PRIVATE)
    if folders.launch.exists():
        folders.launch.rename(_free_name(folders.run))
    partial.rename(folders.launch)


def _free_name(run: Path) -> Path:
    number = 1
    while (run / f"launch_{number}").exists():
        number += 1
    return run / f"launch_{number}"


def check_yaml(config: BroRLConfig) -> None:
    """Raise ConfigError for settings that change when they are written as YAML and read again."""
    try:
        is_same = to_config(OmegaConf.create(to_yaml(config))) == config
    except (ConfigError, OmegaConfBaseException):
        is_same = False
    if not is_same:
        raise ConfigError(
            "the settings do not come back from YAML as they are: is there a ${…} in a text? Write it another way"
        )


def absolute_paths(config: BroRLConfig, folder: Path) -> BroRLConfig:
    """Return the settings with every relative path made absolute, counted from `folder`.

    A job starts in another folder than the command that renders it.
    """
    run_folder = _absolute(config.exp_manager.explicit_log_dir, folder)
    model = _absolute_model(config.policy.model, folder)
    kl = config.algorithm.kl
    teacher = kl.teacher and _absolute_model(kl.teacher, folder)
    teachers = {task: _absolute_model(name, folder) for task, name in kl.teachers.items()}
    domains = []
    for domain in config.data.domains:
        path = _absolute(domain.path, folder)
        held_out_path = _absolute(domain.held_out_path, folder)
        domains.append(replace(domain, path=path, held_out_path=held_out_path))
    path = _absolute(config.data.path, folder)
    held_out_path = _absolute(config.data.held_out_path, folder)
    readable = [_absolute(name, folder) for name in config.rewards.code.readable]
    return replace(
        config,
        exp_manager=replace(config.exp_manager, explicit_log_dir=run_folder),
        policy=replace(config.policy, model=model),
        algorithm=replace(config.algorithm, kl=replace(kl, teacher=teacher, teachers=teachers)),
        data=replace(config.data, path=path, held_out_path=held_out_path, domains=domains),
        rewards=replace(config.rewards, code=replace(config.rewards.code, readable=readable)),
    )


def _absolute_model(model: str, folder: Path) -> str:
    # Otherwise it is a name on the hub.
    return _absolute(model, folder) if (folder / Path(model).expanduser()).is_dir() else model


def _absolute(path: Location, folder: Path) -> Location:
    """Return a path as an absolute path, resolved from `folder`, or None for None.

    A path from an environment variable is still written to files as this variable.
    """
    if path is None:
        return path
    # Where a variable begins with `~`, only its expanded value can be written.
    if not isinstance(path, FromEnvironment) or path.startswith("~"):
        return os.path.normpath(folder / Path(path).expanduser())
    if Path(path).is_absolute():
        return path
    return FromEnvironment(f"{folder}/{path}", f"{folder}/{path.written}")


def shell_command(arguments: Sequence[str], folder: Path) -> str:
    """Return the `brorl` command that renders a job as one shell line, which can be pasted again."""
    return f"cd {shlex.quote(str(folder))} && brorl {shlex.join(arguments)}"
