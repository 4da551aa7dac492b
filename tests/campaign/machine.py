"""What a machine does to a run: its disk, its memory, its ports and its clock."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from nemo_brorl.core.processes import is_running, name_of

SOURCE = Path(__file__).with_name("machine.c")
VARIABLE = "BRORL_CAMPAIGN_MACHINE"  # names the file of settings
DISK_MIB = 256  # of a run folder that is a disk of its own
LARGEST_REST = 1 << 20  # bytes that a full disk may have left
MEMORY_GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # versions 1 and 2
LITTLE_MEMORY = 32 << 20  # bytes that all processes together may still ask for
OUT_OF_MEMORY_S = 20.0  # in which something is to ask for more
RAYS_PORTS = range(10_002, 20_000)
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
NOT_ALLOWED = (OSError, subprocess.CalledProcessError)  # of a user who may not do that to the machine
SPARE_FILES = 4096  # open files that this process needs beside the ports


@contextmanager
def own_disk(folder: Path) -> Iterator[None]:
    """A small disk in memory in the place of a folder. Raises CalledProcessError for users who may not mount."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "campaign", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, rest: int) -> Path:
    """Fill a disk but for about `rest` bytes. Returns the file that does it. Raises OSError where it is not the
    folder's own."""
    if not folder.is_mount():
        raise OSError(errno.EXDEV, "the folder is on the machine's own disk", str(folder))
    path = folder / "filler"
    free = shutil.disk_usage(folder).free
    with path.open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, free - rest))
    return path


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """A folder in which nothing can be made, changed or removed, by root neither. Raises CalledProcessError for users
    and disks that have no such flag."""
    subprocess.run(["chattr", "-R", "+i", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-R", "-i", folder], check=True)


def run_out_of_memory(processes: Sequence[psutil.Process]) -> list[str]:
    """Put processes into a memory group that has hardly any, until the kernel has killed one. Returns the names of
    those that ended. Raises OSError where no group can be made."""
    top, limit = memory_group()
    group = top / f"brorl_campaign_{os.getpid()}"
    group.mkdir()
    try:
        names = {process: name_of(process) for process in processes if is_running(process)}
        move(list(names), group)
        (group / limit).write_text(str(LITTLE_MEMORY))
        deadline = time.monotonic() + OUT_OF_MEMORY_S
        ended: list[psutil.Process] = []
        while not ended and time.monotonic() < deadline:
            ended, _ = psutil.wait_procs(list(names), timeout=0.2)
        return [names[process] for process in ended]
    finally:
        (group / limit).write_text(str(1 << 50))
        numbers = (group / "cgroup.procs").read_text().split()
        move([psutil.Process(int(number)) for number in numbers if psutil.pid_exists(int(number))], top)
        remove_group(group)


def memory_group() -> tuple[Path, str]:
    """The folder of the kernel's memory groups, and the file that holds a group's limit."""
    first, second = MEMORY_GROUPS
    if (first / "memory.limit_in_bytes").exists():
        return first, "memory.limit_in_bytes"
    if "memory" in (second / "cgroup.subtree_control").read_text().split():
        return second, "memory.max"
    raise OSError(errno.ENOTSUP, "this machine has no memory groups")


def move(processes: Sequence[psutil.Process], group: Path) -> None:
    """Processes belong to a group from now on; what they have taken already does not count."""
    for process in processes:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            (group / "cgroup.procs").write_text(str(process.pid))


def remove_group(group: Path) -> None:
    """Remove a group once the last of its processes has ended or left."""
    for _ in range(100):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


@contextmanager
def taken_ports() -> Iterator[int]:
    """Every second port of Ray's and of those that the kernel gives out is taken: their number."""
    low, high = (int(number) for number in LOCAL_PORTS.read_text().split())
    wanted = [*RAYS_PORTS[::2], *range(low, high, 2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(wanted) + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        needed = hard
        wanted = wanted[: max(0, hard - SPARE_FILES)]
    num_taken = 0
    with ExitStack() as stack:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for port in wanted:
            taken = stack.enter_context(socket.socket())
            with suppress(OSError):
                taken.bind(("", port))
                num_taken += 1
        yield num_taken


def build(folder: Path) -> Path:
    """Compile `machine.c`. Returns the library."""
    library = folder / "machine.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def settings_of(folder: Path) -> Path:
    """Where the clock and the disk of a run are set, beside its folder."""
    return folder.with_name(folder.name + ".machine")


def write_settings(path: Path, seconds_ahead: int = 0, disk_s: float = 0.0) -> None:
    """Set clock and disk of the processes that read this file, at once."""
    content = struct.pack("qq", seconds_ahead, round(1e6 * disk_s))
    if path.exists():
        with path.open("r+b") as file:  # the same file, which they look into
            file.write(content)
    else:
        path.write_bytes(content)


def variables(library: Path, settings: Path) -> Mapping[str, str]:
    """Variables of a process on such a machine."""
    return {"LD_PRELOAD": str(library), VARIABLE: str(settings)}
