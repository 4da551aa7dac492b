"""An exported folder on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.export import RECORD


def files_to_push(folder: Path) -> list[Path]:
    """What a hub gets of an exported folder: all but the record, which names a folder of this machine."""
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != RECORD:
            found.append(path.relative_to(folder))
    return found


def push(folder: Path, repository: str, is_private: bool) -> str:
    """Upload an exported folder to the Hugging Face hub with the token that `hf auth login` or HF_TOKEN gives. Returns
    its address. Raises CheckpointError with what the hub says."""
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
