"""Faults that are done to a run from outside, each drawn by a seed."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.commands import Command

STOPPED_S = 10.0  # for which a process stands still
FULL_BYTES = 4096  # beyond which no file grows on a disk that is full
RAYS_OWN = ("gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "monitor", "log_monitor")


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and when."""

    kind: str  # of KINDS
    at: float  # share of the undisturbed run's seconds
    seed: int  # of what else is drawn: which process, which file, which bit

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.0%}"


def draw(number: int, seed: int) -> list[Fault]:
    """So many faults, kinds in turn of a shuffled order, so that each comes as often as any other."""
    generator = random.Random(seed)
    faults: list[Fault] = []
    kinds: list[str] = []
    for _ in range(number):
        if not kinds:
            kinds = sorted(KINDS)
            generator.shuffle(kinds)
        faults.append(Fault(kinds.pop(), generator.random(), generator.randrange(1 << 30)))
    return faults


def victims(processes: Sequence[psutil.Process], names: Sequence[str]) -> list[psutil.Process]:
    """Processes with one of these beginnings of their names, those that are still there."""
    found: list[psutil.Process] = []
    for process in processes:
        try:
            if process.name().startswith(tuple(names)):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def kill_driver(command: Command, folder: Path, generator: random.Random) -> str:
    """SIGKILL of the driver alone: what it started is to notice."""
    command.send(signal.SIGKILL)
    return "driver"


def kill_of(*names: str) -> Callable[[Command, Path, random.Random], str]:
    """SIGKILL of one process of those names."""

    def kill(command: Command, folder: Path, generator: random.Random) -> str:
        found = victims(command.processes(), names)
        if not found:
            return "nobody: none is there yet"
        victim = generator.choice(found)
        name = victim.name()
        victim.kill()
        return name

    return kill


def stop(command: Command, folder: Path, generator: random.Random) -> str:
    """SIGSTOP of any process for a while."""
    victim = generator.choice(command.processes() or [psutil.Process()])
    if victim.pid == psutil.Process().pid:
        return "nobody: none is there yet"
    name = victim.name()
    victim.suspend()
    time.sleep(STOPPED_S)
    if victim.is_running():
        victim.resume()
    return name


def fill_disk(command: Command, folder: Path, generator: random.Random) -> str:
    """No file of any of the run's processes grows beyond a few KiB from now on (RLIMIT_FSIZE: EFBIG for ENOSPC)."""
    processes = command.processes()
    for process in processes:
        if process.is_running():
            process.rlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
    return f"{len(processes)} processes"


def damage_file(folder: Path, generator: random.Random) -> str:
    """A flipped bit or a lost half in some file that the run has written, between two of its drivers. Of checkpoints
    the newest is damaged, where there is one before."""
    files = [folder / "metrics.jsonl", folder / "heartbeat.json", *(folder / "store").rglob("*.parquet")]
    checkpoints = sorted((folder / "checkpoints").glob("step_*/COMPLETE"))
    if len(checkpoints) > 1:
        newest = max(checkpoints, key=lambda marker: int(marker.parent.name.removeprefix("step_")))
        files += [path for path in newest.parent.rglob("*") if path.is_file()]
    there = sorted(path for path in files if path.is_file() and path.stat().st_size)
    if not there:
        return "no file yet"
    path = generator.choice(there)
    content = bytearray(path.read_bytes())
    if path.suffix == ".jsonl":
        content += content[: len(content) // 3].rstrip()[:50]  # half of a row, as a crash leaves it
    elif generator.random() < 0.5:
        del content[len(content) // 2 :]
    else:
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)
    return str(path.relative_to(folder))


# Faults while the run goes on; those with None are done by the campaign between or beside its drivers.
KINDS: dict[str, Callable[[Command, Path, random.Random], str] | None] = {
    "driver killed": kill_driver,
    "rank killed": kill_of("ray::PolicyWorker"),
    "engine killed": kill_of("ray::RolloutEngine"),
    "verifier killed": kill_of("ray::VerifierWorker"),
    "one of Ray's own killed": kill_of(*RAYS_OWN),
    "any process stopped": stop,
    "disk full": fill_disk,
    "file damaged": None,
    "second driver": None,
}
