"""Watches a training run from outside: the largest memory of each actor, and its processor seconds in every step."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

POLL_S = 0.1
ROLES = {"ray::PolicyWorker": "rank", "ray::RolloutEngine": "engine"}
MIB = 2**20


@dataclass
class Watched:
    """One actor."""

    role: str  # a value of ROLES
    peak_gib: float = 0.0  # private: without pages shared with the object store
    shared_gib: float = 0.0  # largest share of the object store that it had in its address space
    cpu_s: list[float] = field(default_factory=list)  # when each row of metrics.jsonl appeared


def watch(command: Sequence[str], metrics: Path) -> list[Watched]:
    """Run a command to its end. Raises CalledProcessError when it fails."""
    actors: dict[int, Watched] = {}
    started = subprocess.Popen(list(command))
    run = psutil.Process(started.pid)
    num_rows = 0
    while started.poll() is None:
        rows = _num_lines(metrics)
        for process in _children(run):
            _note(process, actors, rows if rows > num_rows else 0)
        num_rows = max(rows, num_rows)
        time.sleep(POLL_S)
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, list(command))
    return sorted(actors.values(), key=lambda actor: actor.role)


def _children(run: psutil.Process) -> list[psutil.Process]:
    try:
        return list(run.children(recursive=True))
    except psutil.Error:
        return []


def _note(process: psutil.Process, actors: dict[int, Watched], num_rows: int) -> None:
    """Take a process's sizes, and its seconds if there are `num_rows` rows now."""
    try:
        if process.pid not in actors:
            title = (process.cmdline() or [""])[0].split(".")[0]
            if title not in ROLES:
                return
            actors[process.pid] = Watched(ROLES[title])
        actor = actors[process.pid]
        sizes = status_kib(process.pid)
        actor.peak_gib = max(actor.peak_gib, (sizes["RssAnon"] + sizes["RssFile"]) / MIB)
        actor.shared_gib = max(actor.shared_gib, sizes["RssShmem"] / MIB)
        if num_rows > len(actor.cpu_s):
            times = process.cpu_times()
            actor.cpu_s += [times.user + times.system] * (num_rows - len(actor.cpu_s))
    except (psutil.Error, OSError, KeyError):
        return  # it has ended


def status_kib(pid: int) -> dict[str, int]:
    """Return the resident memory of a process by kind, in KiB: RssAnon, RssFile, RssShmem.

    Raises OSError when the process has ended.
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="ignore").splitlines()
    sizes: dict[str, int] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.startswith("Rss"):
            sizes[name] = int(value.split()[0])
    return sizes


def _num_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def read_rows(path: Path) -> list[dict[str, float]]:
    """Read the rows of a metrics.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
