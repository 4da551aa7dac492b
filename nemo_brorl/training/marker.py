"""The marker of a complete checkpoint: the file `COMPLETE`, written last, with names, sizes and crc32 of all files."""

from __future__ import annotations

from pathlib import Path

from brorl_graders.base.foreign import LARGE, record_bytes

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.file_sums import SUMS, FileSum, all_damage, file_sum, sums_as_json, sums_from_json
from nemo_brorl.core.files import MALFORMED, write_atomically

MARKER = "COMPLETE"

log = get_logger(__name__)


def write_marker(folder: Path) -> None:
    """Write the marker file that makes a folder a complete checkpoint. Raises OSError.

    The crc32 of the policy's files are not in the marker but in `policy/checksums.json`. Each policy rank computes and
    checks them for its share of the files.
    """
    sums: dict[str, FileSum] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder)
            # The policy's files are large, and each rank checks its share of them when it loads.
            is_own = len(name.parts) == 1 or path.name == SUMS
            sums[str(name)] = file_sum(path) if is_own else FileSum(path.stat().st_size, None)
    write_atomically(folder / MARKER, sums_as_json(sums), is_synced=True)


def is_complete(folder: Path) -> bool:
    """Return True if a checkpoint's marker file exists and fits the sizes of all files.

    Otherwise a warning names the differences.
    """
    if not (folder / MARKER).is_file():
        log.warning("%s was not finished and is ignored", folder)
        return False
    try:
        marked = _marked(folder)
    except (OSError, *MALFORMED):
        log.warning("%s has a damaged marker and is ignored", folder)
        return False
    # Only sizes are compared. Reading all bytes of every checkpoint would take minutes at each start.
    sizes = {name: FileSum(known.num_bytes, None) for name, known in marked.items()}
    damaged = all_damage(folder, sizes)
    if damaged:
        log.warning("%s is damaged (%s) and is ignored", folder, "; ".join(damaged))
    return not damaged


def check_sums(folder: Path) -> None:
    """Check the files of a checkpoint against the checksums (crc32) in the checkpoint's marker file.

    Files for which the marker has only a size are not read. Raises CheckpointError, which names the files that have
    changed.
    """
    damaged = all_damage(folder, _marked(folder))
    if damaged:
        raise CheckpointError(f"damaged since it was saved: {'; '.join(damaged)}")


def _marked(folder: Path) -> dict[str, FileSum]:
    """Return the file sizes and checksums in a checkpoint's marker file.

    Raises OSError, or one of `MALFORMED` for a damaged marker.
    """
    return dict(sums_from_json(record_bytes(folder / MARKER, LARGE)))
