"""Faults that are done to a run from outside, each drawn by a seed."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.campaign import machine
from tests.support.commands import Command

STOPPED_S = 60.0  # for which a process stands still
FULL_BYTES = 4096  # beyond which no file grows for a user over quota
RAYS_OWN = ("gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "monitor", "log_monitor")


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and when."""

    kind: str  # of KINDS
    command: str  # that it happens to
    at: float  # share of the undisturbed run's seconds
    seed: int  # of what else is drawn: which process, which file, which bit

    def __str__(self) -> str:
        return f"{self.command}: {self.kind} at {self.at:.0%}"


@dataclass
class Scene:
    """A run that goes on, and what can be done to it."""

    command: Command  # its driver
    folder: Path  # run folder
    generator: random.Random
    arguments: Sequence[str]  # of the driver
    undo: ExitStack  # closed before the next driver starts
    wrong: list[str] = field(default_factory=list)  # seen while striking


def draw(number: int, seed: int, among: Collection[str] = (), command: str = "") -> list[Fault]:
    """So many faults, kinds in turn of a shuffled order, so that each comes as often as any other. `among`: kinds to
    draw from, if not all; `command`: the only one to disturb."""
    generator = random.Random(seed)
    faults: list[Fault] = []
    kinds: list[str] = []
    for _ in range(number):
        if not kinds:
            kinds = sorted(among or KINDS)
            generator.shuffle(kinds)
        kind = kinds.pop()
        at = 0.0 if kind in AT_ITS_START else generator.random()
        drawn = generator.choice(COMMANDS.get(kind, ALL_COMMANDS))
        faults.append(Fault(kind, command or drawn, at, generator.randrange(1 << 30)))
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


def kill_driver(scene: Scene) -> str:
    """SIGKILL of the driver alone: what it started is to notice."""
    scene.command.send(signal.SIGKILL)
    return "driver"


def kill_of(*names: str) -> Callable[[Scene], str]:
    """SIGKILL of one process of those names, or of the first one that comes."""

    def kill(scene: Scene) -> str:
        found = victims(scene.command.processes(), names)
        while not found and scene.command.is_alive():
            time.sleep(0.1)
            found = victims(scene.command.processes(), names)
        if not found:
            return "nobody: none came"
        victim = scene.generator.choice(found)
        name = victim.name()
        victim.kill()
        return name

    return kill


def stop(scene: Scene) -> str:
    """SIGSTOP of any process for a while."""
    processes = scene.command.processes()
    if not processes:
        return "nobody: none is there yet"
    victim = scene.generator.choice(processes)
    name = victim.name()
    victim.suspend()
    time.sleep(STOPPED_S)
    if victim.is_running():
        victim.resume()
    return name


def limit_files(scene: Scene) -> str:
    """No file of any of the run's processes grows beyond a few KiB from now on (RLIMIT_FSIZE: EFBIG)."""
    num_limited = 0
    for process in scene.command.processes():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended, or is walled off from this one
            process.rlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
            num_limited += 1
    return f"{num_limited} processes"


def fill_disk(scene: Scene) -> str:
    """The run folder's own small disk is full, but for a drawn rest, which a checkpoint ends in the middle of."""
    rest = scene.generator.randrange(machine.LARGEST_REST)
    scene.undo.callback(machine.fill(scene.folder, rest).unlink)
    return f"{rest} bytes left"


def freeze_folder(scene: Scene) -> str:
    """Nothing in the run folder can be made, changed or removed; files that are open for writing stay so."""
    if not scene.folder.exists():
        return "nobody: no folder yet"
    scene.undo.enter_context(machine.frozen(scene.folder))
    return "run folder"


def run_out_of_memory(scene: Scene) -> str:
    """The kernel ends the process that it chooses when all of them together get no more memory."""
    killed = machine.run_out_of_memory(scene.command.processes())
    return ", ".join(killed) or "nobody: nothing asked for memory"


def take_ports(scene: Scene) -> str:
    """Every second port, of those that programs and Ray choose from, belongs to somebody else."""
    taken = scene.undo.enter_context(machine.taken_ports())
    return f"{taken} ports"


def jump_clock(scene: Scene) -> str:
    """The clock of the day jumps, by an hour, a day or a year, ahead or back."""
    seconds = scene.generator.choice((3600, 86_400, 366 * 86_400)) * scene.generator.choice((1, -1))
    machine.write_settings(machine.settings_of(scene.folder), seconds_ahead=seconds)
    return f"{seconds:+} s"


def slow_disk(scene: Scene) -> str:
    """Every fsync and every rename takes so long, to the end of the driver."""
    seconds = scene.generator.uniform(0.2, 2.0)
    machine.write_settings(machine.settings_of(scene.folder), disk_s=seconds)
    return f"{seconds:.1f} s"


def kill_and_damage(scene: Scene) -> str:
    """A file is damaged between two drivers."""
    kill_driver(scene)
    scene.command.wait()
    return damage_file(scene.folder, scene.generator)


def damage_file(folder: Path, generator: random.Random) -> str:
    """A flipped bit or a lost half in some file that the run has written, between two of its drivers. Of checkpoints
    the newest is damaged, where there is one before."""
    checkpoints = sorted((folder / "checkpoints").glob("step_*/COMPLETE"), key=step_of)
    kept = checkpoints[:-1] or checkpoints  # the only one, too
    there: list[Path] = []
    for path in sorted(folder.rglob("*")):
        is_kept = any(path.is_relative_to(marker.parent) for marker in kept)
        if path.is_file() and path.stat().st_size and not is_kept:
            there.append(path)
    if not there:
        return "nobody: no file yet"
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


def step_of(marker: Path) -> int:
    """Step of a checkpoint, by its marker."""
    return int(marker.parent.name.removeprefix("step_"))


def start_second(scene: Scene) -> str:
    """A second driver in the run folder is refused."""
    second = Command(*scene.arguments)
    code = second.wait()
    if scene.command.is_alive() and (code != 2 or "is in use by" not in second.errors):
        scene.wrong.append(f"the second driver ended with {code}: {second.errors[-500:]}")
    return "run folder"


KINDS: dict[str, Callable[[Scene], str]] = {
    "driver killed": kill_driver,
    "rank killed": kill_of("ray::PolicyWorker"),
    "engine killed": kill_of("ray::RolloutEngine"),
    "verifier killed": kill_of("ray::VerifierWorker"),
    "one of Ray's own killed": kill_of(*RAYS_OWN),
    "any process stopped": stop,
    "out of memory": run_out_of_memory,
    "over quota": limit_files,
    "disk full": fill_disk,
    "disk slow": slow_disk,
    "folder read-only": freeze_folder,
    "file damaged": kill_and_damage,
    "second driver": start_second,
    "ports taken": take_ports,
    "clock jumps": jump_clock,
}
ON_OWN_DISK = ("disk full",)  # kinds whose run folder is a disk of its own
ON_OWN_MACHINE = ("disk slow", "clock jumps")  # kinds whose drivers load `machine.c`
AT_ITS_START = ("ports taken",)  # kinds that come before the driver has opened anything
ALL_COMMANDS = ("train", "train", "sft", "evaluate")  # every second fault is training's, which has the most stages
COMMANDS = {  # of kinds that not every command has a victim for
    "rank killed": ("train", "train", "sft"),
    "second driver": ("train", "train", "sft"),
    "engine killed": ("train", "train", "evaluate"),
    "verifier killed": ("train", "train", "evaluate"),
}
