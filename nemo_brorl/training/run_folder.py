"""Run folder, with the resolved configuration and code revision it belongs to, the refusal to mix two runs in it, and
samples of each step to read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from nemo_brorl.config.same_run import RECORD, check_same_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.files import naming, write_whole
from nemo_brorl.core.object_store import fetch
from nemo_brorl.types import TrainBatch

PRIVATE = 0o700
FROZEN_REVISION = "REVISION"  # beside the package, in code that the launcher has frozen


def claim_run_folder(config: BroRLConfig) -> Path:
    """Create the run folder, or check that an existing one belongs to this configuration.

    Raises CheckpointError naming the settings that differ, or when the folder may not be resumed; ResourceError when
    it cannot be written.
    """
    folder = Path(config.exp_manager.explicit_log_dir)
    if not check_same_run(config):
        with naming(folder / RECORD):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "revision.txt", code_revision() + "\n")
            write_whole(folder / RECORD, OmegaConf.to_yaml(OmegaConf.structured(config)))
    if config.trainer.private_run_folder:
        folder.chmod(PRIVATE)
    return folder


def code_revision() -> str:
    """The git commit of this source tree, with a mark when it has uncommitted changes; "unknown" outside git."""
    root = Path(__file__).parents[1]
    frozen = root.parent / FROZEN_REVISION
    if frozen.is_file():  # inside a run folder, which may lie inside a checkout of another revision
        return frozen.read_text(encoding="utf-8").strip()
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        status = _git(root, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with uncommitted changes" if status else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", *arguments]  # a full disk would leave a lock in somebody's repository
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def write_samples(
    run_folder: Path,
    step: int,
    batch: TrainBatch,
    num: int,
    decode: Callable[[Sequence[int]], str],
) -> None:
    """Write the first rollout of `num` groups as text to `rollouts/step_K.jsonl`, to read what the model does; 0: no
    file. Raises ResourceError."""
    if not num:
        return
    path = run_folder / "rollouts" / f"step_{step}.jsonl"
    text = ""
    for group, advantages in zip(batch.groups[:num], batch.advantages[:num], strict=True):
        arrays = fetch(group.group.chunks[0].data)
        response_ids = arrays.token_ids[: arrays.offsets[1]]
        row = {
            "prompt": decode(group.prompt.token_ids),
            "response": decode(response_ids.tolist()),
            "reward": float(group.rewards[0]),
            "advantage": float(advantages[0]),
            "group_mean": float(group.rewards.mean()),
        }
        text += json.dumps(row) + "\n"
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
