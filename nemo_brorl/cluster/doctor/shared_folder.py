"""Is the run folder the same one on every node? Each writes a word into it, and looks for what the others have
written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_brorl.cluster.doctor.probe import within
from nemo_brorl.cluster.doctor.report import FAIL, OK, Check

NAME = "shared folder"
LOOK_S = 0.2
HANG_S = 30.0  # that a call into a file system may take


def write(folder: Path, node: str, word: str) -> str:
    """Leave `word` as this node's canary. What went wrong, or \"\"."""

    def put() -> str:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = _path(folder, node)
            path.write_text(word, encoding="ascii")
            return "" if path.read_text(encoding="ascii") == word else "what was written does not read back"
        except OSError as error:
            return str(error)

    return str(within(HANG_S, put, f"the file system has not answered for {HANG_S:.0f} s"))


def seen(folder: Path, words: Mapping[str, str], seconds: float) -> list[str]:
    """The nodes whose canary of these is there; looked for until all are, or `seconds` are over: file servers take a
    while."""
    ends_at, found = time.monotonic() + seconds, set[str]()
    while True:
        found |= {node for node, word in words.items() if node not in found and _holds(_path(folder, node), word)}
        if len(found) == len(words) or time.monotonic() > ends_at:
            return sorted(found)
        with contextlib.suppress(OSError):
            os.listdir(folder)  # makes NFS look again
        time.sleep(LOOK_S)


def is_fresh(folder: Path, node: str, max_age_s: float) -> bool:
    """Whether a node has left its canary not longer ago than that."""
    try:
        return time.time() - _path(folder, node).stat().st_mtime < max_age_s
    except OSError:
        return False


def remove(folder: Path, node: str) -> None:
    """Take this node's away."""
    with contextlib.suppress(OSError):
        _path(folder, node).unlink(missing_ok=True)


def judge(nodes: Sequence[str], sights: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Check]:
    """A verdict on each node from who sees whom, itself included. Where most nodes share a folder the others have
    another one; of two halves the first node's is believed: there the job's script has been."""
    verdicts = {}
    for node in nodes:
        others = [name for name in sights if name != node]
        sees = [name for name in others if name in sights.get(node, ()) and node in sights[name]]
        lacks = [name for name in others if name not in sees]
        twice, num = 2 * (len(sees) + 1), len(others) + 1
        if twice > num or (twice == num and nodes[0] not in lacks):
            verdicts[node] = Check(
                NAME, OK, f"{folder} is the same on {len(sees) + 1} nodes" if others else f"{folder} can be written"
            )
        else:
            advice = (
                "put the run folder (exp_manager.explicit_log_dir) on a file system that all nodes mount, and "
                "mount it in the container"
            )
            verdicts[node] = Check(NAME, FAIL, f"{folder} is not the one of {', '.join(lacks[:4])}", advice)
    return verdicts


def _holds(path: Path, word: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == word
    except (OSError, ValueError):
        return False


def _path(folder: Path, node: str) -> Path:
    return folder / f"{node}.canary"
