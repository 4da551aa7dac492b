"""Check that the run folder is the same one on every node: each writes a word into it, and looks for what the others
have written."""

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
    """Leave `word` as this node's. Returns what went wrong, or \"\"."""

    def put() -> str:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = _path(folder, node)
            path.write_text(word, encoding="ascii")
            return "" if path.read_text(encoding="ascii") == word else "what was written does not read back"
        except OSError as error:
            return str(error)

    return str(within(HANG_S, put, f"the file system has not answered for {HANG_S:.0f} s"))


def words_seen(folder: Path, words: Mapping[str, str], seconds: float) -> list[str]:
    """Nodes whose word is there, as `words` has them; looked for until all are, or `seconds` are over: file servers
    take a while."""
    ends_at = time.monotonic() + seconds
    found: set[str] = set()
    while True:
        for node, word in words.items():
            if node not in found and _holds(_path(folder, node), word):
                found.add(node)
        is_late = time.monotonic() > ends_at
        if is_late or len(found) == len(words):
            return sorted(found)
        with contextlib.suppress(OSError):
            os.listdir(folder)  # makes NFS look again
        time.sleep(LOOK_S)


def is_fresh(folder: Path, node: str, max_age_s: float) -> bool:
    """Whether a node has left its word not longer ago than that."""
    try:
        written_at = _path(folder, node).stat().st_mtime
        return time.time() - written_at < max_age_s
    except OSError:
        return False


def remove(folder: Path, node: str) -> None:
    """Take this node's word away."""
    with contextlib.suppress(OSError):
        _path(folder, node).unlink(missing_ok=True)


def judge(
    nodes: Sequence[str],
    sights: Mapping[str, Sequence[str]],
    folder: Path,
) -> dict[str, Check]:
    """Verdict on each node from who sees whom, itself included. Where most nodes share a folder the others have
    another one; of two halves the first node's is believed: there the job's script has been."""
    advice = (
        "put the run folder (exp_manager.explicit_log_dir) on a file system that all nodes mount, and mount it in the "
        "container"
    )
    verdicts = {}
    for node in nodes:
        same = [node]  # nodes that share the folder with this one: each sees the other
        lacks: list[str] = []
        for other in sights:
            if other == node:
                continue
            sees_each_other = other in sights.get(node, ()) and node in sights[other]
            (same if sees_each_other else lacks).append(other)
        is_with_most = len(same) > len(lacks)
        if len(same) == len(lacks):
            is_with_most = nodes[0] not in lacks
        if not is_with_most:
            verdicts[node] = Check(NAME, FAIL, f"{folder} is not the one of {', '.join(lacks[:4])}", advice)
        elif len(same) + len(lacks) == 1:
            verdicts[node] = Check(NAME, OK, f"{folder} can be written")
        else:
            verdicts[node] = Check(NAME, OK, f"{folder} is the same on {len(same)} nodes")
    return verdicts


def _holds(path: Path, word: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == word
    except (OSError, ValueError):
        return False


def _path(folder: Path, node: str) -> Path:
    return folder / f"{node}.word"
