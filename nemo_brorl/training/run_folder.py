"""The run folder: it records the settings and the code revision, and never mixes two runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nemo_brorl.config.load import to_yaml
from nemo_brorl.config.same_run import RECORD, check_same_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, start_log
from nemo_brorl.core.files import naming, write_atomically
from nemo_brorl.core.model_folder import write_commit
from nemo_brorl.training.machine_record import note_machine

LOG = "log.txt"  # file in the run folder with all that its commands printed and logged, with times
PRIVATE = 0o700
FROZEN_REVISION = "REVISION"  # file next to the package, in code that the launcher has frozen


def claim_run_folder(config: BroRLConfig, model_folder: Path | None = None) -> Path:
    """Create the run folder, or check that an existing one belongs to a run with these settings.

    A new one records the commit of a model that was downloaded into `model_folder`.

    Raises CheckpointError that names the differing settings, or when the folder may not be resumed. Raises
    ResourceError when it cannot be written.
    """
    folder = Path(config.exp_manager.explicit_log_dir)
    if not check_same_run(config):
        with naming(folder / RECORD):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "revision.txt", code_revision() + "\n")
            if model_folder is not None:
                write_commit(folder, config.policy.model, model_folder)
            write_atomically(folder / RECORD, to_yaml(config))
    note_machine(folder)
    if config.trainer.private_run_folder:
        folder.chmod(PRIVATE)
    return folder


def open_log(folder: Path, console: Console) -> None:
    """Append what is printed and logged to a file of the run folder from now on, and name the file."""
    path = folder / LOG
    is_new = not path.exists()
    with naming(path):
        start_log(path)
    console.line(f"run folder {folder} ({'new' if is_new else 'goes on'}), log: {path}")


def code_revision() -> str:
    """Return the git commit of this program's source, marked if it has uncommitted changes, or "unknown"."""
    root = Path(__file__).parents[1]
    frozen = root.parent / FROZEN_REVISION
    # Frozen code is in a run folder, which may be inside a checkout of another revision, which git would name.
    if frozen.is_file():
        return frozen.read_text(encoding="utf-8").strip()
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        status = _git(root, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with uncommitted changes" if status else commit


def _git(root: Path, *arguments: str) -> str:
    # On a full disk git would leave its lock in the repository.
    command = ["git", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout
