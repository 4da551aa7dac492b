"""Refuse what is no run folder, in the same words for all commands."""

from __future__ import annotations

import shlex
from pathlib import Path

from nemo_brorl.core.errors import ConfigError, DataError

METRICS = "metrics.jsonl"
SIGNS = ("config.yaml", "launch", "heartbeat.json", METRICS)  # any one marks a run folder


def run_folder(name: str | Path) -> Path:
    """Return the path of a run folder. Raises ConfigError when there is none."""
    folder = Path(name).expanduser()
    if folder.is_dir() and any((folder / sign).exists() for sign in SIGNS):
        return folder
    reason = (
        f"is no run folder: it has none of {', '.join(SIGNS)}" if folder.is_dir() else "there is no such run folder"
    )
    parents = [folder, *folder.parents] if folder.is_absolute() else [folder, *folder.parents, Path.cwd()]
    nearest = next(parent for parent in parents if parent.is_dir())
    raise ConfigError(f"{name}: {reason}. `brorl runs {shlex.quote(str(nearest))}` lists run folders.")


def metrics_file(name: str | Path) -> Path:
    """Return the metrics file of a run: `name` itself, or the one in the run folder `name`.

    Raises ConfigError for another folder, and DataError for a run without a finished step.
    """
    if Path(name).is_file():
        return Path(name)
    path = run_folder(name) / METRICS
    if not path.is_file():
        raise DataError(f"{path.parent}: this run has finished no step, it has no {METRICS}")
    return path
