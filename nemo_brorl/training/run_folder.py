"""The run folder: the resolved configuration and code revision it belongs to, and the refusal to mix two runs in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from omegaconf import OmegaConf

from nemo_brorl.config.same_run import RECORD, check_same_run
from nemo_brorl.config.schema import BroRLConfig

FROZEN_REVISION = "REVISION"  # beside the package, in code that the launcher has frozen


def claim_run_folder(config: BroRLConfig) -> Path:
    """Create the run folder, or check that an existing one belongs to this configuration.

    Raises CheckpointError naming the settings that differ, or when the folder may not be resumed.
    """
    folder = Path(config.exp_manager.explicit_log_dir)
    if not check_same_run(config):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "revision.txt").write_text(code_revision() + "\n")
        OmegaConf.save(OmegaConf.structured(config), folder / RECORD)
    return folder


def code_revision() -> str:
    """The git commit of this source tree, with a mark when it has uncommitted changes; "unknown" outside git."""
    root = Path(__file__).parents[1]
    frozen = root.parent / FROZEN_REVISION
    if frozen.is_file():  # inside a run folder, which may lie inside a checkout of another revision
        return frozen.read_text(encoding="utf-8").strip()
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        status = subprocess.run(
            ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + (" with uncommitted changes" if status else "")
