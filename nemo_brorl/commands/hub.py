"""Upload an exported model folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.export import RECORD


def files_to_push(folder: Path) -> list[Path]:
    """Return the files of an exported model folder that are uploaded.

    All are, except the file that records the source checkpoint, because it names a folder of this machine.
    """
    paths: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != RECORD:
            paths.append(path.relative_to(folder))
    return paths


def push(folder: Path, repository: str, is_private: bool) -> str:
    """Upload an exported folder to the Hugging Face hub and return its address.

    The token is that of `hf auth login` or HF_TOKEN. Raises CheckpointError with the hub's message.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    hub = HfApi()
    try:
        made = hub.create_repo(repository, private=is_private, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            ignore_patterns=[RECORD],
            commit_message="Weights of a BroRL run",
        )
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise CheckpointError(f"--push-to-hub={repository}: {error}; the folder is {folder}") from error
    return str(made)
