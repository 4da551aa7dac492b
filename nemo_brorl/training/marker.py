"""The marker of a complete checkpoint: `COMPLETE`, written last, with the names, sizes and crc32 of all files."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.file_sums import SUMS, FileSum, all_damage, file_sum, sums_as_json, sums_from_json
from nemo_brorl.core.files import MALFORMED, write_atomically

MARKER = "COMPLETE"

log = get_logger(__name__)


def write_marker(folder: Path) -> None:
    """Make a folder a complete checkpoint. The crc32 of the policy's files are not in the marker but in
    `policy/checksums.json`: ranks take and check them, each at its share. Raises OSError."""
    sums: dict[str, FileSum] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder)
            # The ranks' files are large, and each rank checks its share of them when it loads.
            is_own = len(name.parts) == 1 or path.name == SUMS
            sums[str(name)] = file_sum(path) if is_own else FileSum(path.stat().st_size, None)
    write_atomically(folder / MARKER, sums_as_json(sums), is_synced=True)


def is_complete(folder: Path) -> bool:
    """Whether the marker is there and fits the sizes of all files; what does not fit is named in a warning."""
    if not (folder / MARKER).is_file():
        log.warning("%s was not finished: left out", folder)
        return False
    try:
        marked = _marked(folder)
    except (OSError, *MALFORMED):
        log.warning("%s has a damaged marker: left out", folder)
        return False
    # Sizes alone: to read all bytes of every checkpoint would take minutes at each start.
    sizes = {name: FileSum(known.num_bytes, None) for name, known in marked.items()}
    damaged = all_damage(folder, sizes)
    if damaged:
        log.warning("%s is damaged (%s): left out", folder, "; ".join(damaged))
    return not damaged


def check_sums(folder: Path) -> None:
    """Look at the bytes of the files whose crc32 the marker knows. Raises CheckpointError that names those that are not
    as they were written."""
    damaged = all_damage(folder, _marked(folder))
    if damaged:
        raise CheckpointError(f"damaged since it was saved: {'; '.join(damaged)}")


def _marked(folder: Path) -> dict[str, FileSum]:
    """Raises OSError, or one of `MALFORMED` for a damaged marker."""
    return dict(sums_from_json((folder / MARKER).read_text(encoding="utf-8")))
