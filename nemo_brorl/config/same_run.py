"""Compare settings with those that the run folder's run was started with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from brorl_graders.base.environment_values import as_written, plain
from brorl_graders.base.foreign import RecordError
from omegaconf import OmegaConf

from nemo_brorl.config.schema import BroRLConfig, settings
from nemo_brorl.config.trackers import with_loggers_beside
from nemo_brorl.config.unread import is_default, is_read_in_training
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.recorded_yaml import read_record

RECORD = "config.yaml"  # file in the run folder with the settings of its run
# Settings in the records of earlier versions that have been removed. No run learns otherwise without them.
GONE = ("generation.keep_published",)


def check_same_run(config: BroRLConfig) -> bool:
    """Return whether the run folder already holds a run, after checking that these settings may resume it.

    A setting that the record lacks is of a later version, and may have its default. One that training does not read may
    have any value. Raises CheckpointError that names the settings that differ, or if the folder may not be resumed.
    """
    folder = Path(config.exp_manager.explicit_log_dir)
    record = folder / RECORD
    if not record.exists():
        return False
    if not config.exp_manager.resume_if_exists:
        raise CheckpointError(
            f"exp_manager.explicit_log_dir={folder}: this run folder exists already. Set a new folder, or "
            "exp_manager.resume_if_exists=true to resume its run."
        )
    old = recorded_settings(record)
    new = _unresolved(as_written(config))
    # Earlier versions recorded the values of environment variables.
    held = _unresolved(plain(config))
    may_change = ("exp_manager.", *GONE, *(name for name, setting in settings().items() if setting.may_change))
    changed = []
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was in (now, held.get(name)) or name.startswith(may_change):
            continue
        is_later = name not in old and is_default(name, now)
        if not is_later and is_read_in_training(config, name):
            changed.append(f"{name} was {was!r}, now {now!r}")
    if changed:
        raise CheckpointError(
            f"exp_manager.explicit_log_dir={folder}: the run in this folder has other settings "
            f"({'; '.join(changed[:5])}). Set a new folder, or restore these values to resume it. If the run never had "
            f"such a value, {record} is damaged: delete that file."
        )
    return True


def _unresolved(config: BroRLConfig) -> dict[str, Any]:
    """Return the settings of a run by dotted name, with interpolations such as `${oc.env:KEY}` left unresolved.

    Run folders record settings in this form.
    """
    tree: Any = OmegaConf.to_container(OmegaConf.structured(config), resolve=False)
    return dict(leaves(with_loggers_beside(tree)))


def with_sizes_of_run(config: BroRLConfig) -> BroRLConfig:
    """Return the settings with automatic sizes, such as ranks and engines, filled in from an existing run folder.

    Sizes that the user set now stay, and those that may change when a run is resumed are left to be chosen again.
    """
    record = Path(config.exp_manager.explicit_log_dir) / RECORD
    if not record.is_file():
        return config
    earlier = recorded_settings(record)
    for name, known in settings().items():
        if not known.declared.is_auto or known.may_change:
            continue
        section, key = name.split(".")
        was = earlier.get(name)
        if was is not None and getattr(getattr(config, section), key) is None:
            changed: Any = replace(getattr(config, section), **{key: was})
            config = replace(config, **{section: changed})
    return config


def recorded_settings(record: Path) -> dict[str, Any]:
    """Return the settings that a run was started with, by dotted name, with interpolations unresolved.

    Raises CheckpointError for a damaged file.
    """
    try:
        leaves = record_leaves(record)
        if leaves:
            return leaves
        reason = "it holds no settings"
    except RecordError as error:
        reason = error.reason
    raise CheckpointError(
        f"{record} is damaged ({reason}). Delete this file to resume with the settings that are set now, which must be "
        "those that the run was started with, or set another exp_manager.explicit_log_dir."
    )


def record_leaves(record: Path) -> dict[str, Any]:
    """Return the settings in a run folder's YAML record by dotted name, with interpolations unresolved.

    An empty file has none. Raises RecordError.
    """
    read = read_record(record)
    return dict(leaves(read)) if read else {}


def leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of every setting below an OmegaConf node, with a list as one value."""
    if not isinstance(node, dict) or not node:
        yield name, node
        return
    for key, value in node.items():
        yield from leaves(value, f"{name}.{key}" if name else str(key))
