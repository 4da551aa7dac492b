"""Check a machine: Python, compiler, disks, limits of processes, memory and ports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from brorl_graders.base.private_folder import private_folder, scratch_home, scratch_root

from brorl_launcher.doctor.probe import call_within
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.memory import needed_gib
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import resolve_sizes
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.machine import GIB, available_gib, this_machine
from nemo_brorl.core.model_shape import ModelShape, num_parameters
from nemo_brorl.core.private_folder import kernel_caches

PYTHONS = ((3, 11), (3, 12), (3, 13))
CHECKPOINT_BYTES = 18  # bytes a parameter: weights, fp32 master weights, two moments, the reference
EXPORT_BYTES = 4  # bytes a parameter in a Hugging Face folder
TMP_GIB = 2.0  # size of Ray's session: logs, sockets
RAY_FULL = 0.95  # disk use above which Ray refuses to spill objects
SHM_GIB = 1.0  # smallest object store of Ray on CPU (cluster.py)
TOKEN_BYTES = 8  # token id and log-prob
FILES_AT_LEAST, FILES_PER_PROCESS = 4096, 16  # Ray's head holds connections to the whole run
THREADS_PER_PROCESS = 128  # threads of an actor with torch, Ray and their pools
HANG_S = 20.0
INFINIBAND = Path("/sys/class/infiniband")  # one entry a card


def check_python() -> Check:
    """Check that this Python interpreter is one that nemo_brorl runs on."""
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.version_info[:2] in PYTHONS:
        return Check("python", OK, found)
    return Check("python", FAIL, found, "use Python 3.11 to 3.13: scripts/install.sh makes an environment")


def check_compiler() -> Check:
    """Check that this machine can compile C code.

    Triton and Inductor build the launchers of their kernels in C on every node that runs them.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if compiler is None:
        return Check("compiler", FAIL, "none", "install gcc on every node, or name a compiler in CC")
    if not header.exists():
        return Check("compiler", FAIL, f"{compiler}, no {header}", "install Python's headers (package python3-dev)")
    return Check("compiler", OK, str(compiler))


def check_nodes(config: BroRLConfig, num_nodes: int) -> Iterator[Check]:
    """Check that the Slurm job has as many nodes as the settings say.

    Yields nothing where one machine alone is checked.
    """
    wanted = config.trainer.num_nodes
    if num_nodes < wanted and num_nodes > 1:
        advice = f"ask Slurm for {wanted} (--nodes), or set trainer.num_nodes={num_nodes}"
        yield Check("nodes", FAIL, f"{num_nodes}, trainer.num_nodes={wanted}", advice)
    elif num_nodes > wanted:
        advice = f"{num_nodes - wanted} are spare; set trainer.num_nodes={num_nodes} to use them"
        yield Check("nodes", WARN, f"{num_nodes}, trainer.num_nodes={wanted}", advice)


def check_disks(config: BroRLConfig, shape: ModelShape | None) -> Iterator[Check]:
    """Check the free space in the run folder, in /tmp and in /dev/shm against what the settings need."""
    run_folder = Path(config.exp_manager.explicit_log_dir)
    size = num_parameters(shape) if shape else 0
    checkpoints = CHECKPOINT_BYTES * (config.trainer.keep_checkpoints + 1)
    kept = size * (checkpoints + 2 * EXPORT_BYTES) / GIB
    advice = "move exp_manager.explicit_log_dir, or lower trainer.keep_checkpoints"
    yield check_room("disk, run", run_folder, kept + 1.0, advice)
    root = call_within(HANG_S, scratch_root, os.environ.get("TMPDIR"))
    scratch = Path(os.environ.get("RAY_TMPDIR") or root)
    advice = "empty it, or set TMPDIR to a local disk with room, by a short path"
    yield check_room("disk, tmp", scratch, TMP_GIB, advice, is_for_ray=True)
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    tokens = max(config.rollouts.stage_samples()) * longest * TOKEN_BYTES
    item = 2 if config.generation.precision == "bf16" else 4
    weights = item * size if RunSizes.from_config(config).weight_transport == "object_store" else 0
    rollouts = 2 * tokens / max(config.trainer.num_nodes, 1)
    shm = SHM_GIB + (rollouts + weights) / GIB
    advice = (
        "mount a larger one (docker: --shm-size, enroot: a tmpfs on /dev/shm): what has no room there goes through "
        "the disk"
    )
    yield check_room("disk, shm", Path("/dev/shm"), shm, advice, least_gib=SHM_GIB)


def check_private() -> Check:
    """Check that no other user can write to this user's private folders.

    They are the folders for sockets, compiled kernels and home folders of child processes, and are made where they are
    missing.
    """
    found = call_within(HANG_S, _private_folders, None)
    if found is None:
        return Check("private", FAIL, f"no answer for {HANG_S:.0f} s", "set TMPDIR and BRORL_CACHE to local disks")
    if isinstance(found, ResourceError):
        reason, _, advice = str(found).rpartition(": ")
        return Check("private", FAIL, reason, advice)
    return Check("private", OK, ", ".join(str(folder) for folder in found))


def _private_folders() -> list[Path] | ResourceError:
    try:
        caches = {Path(folder).parent for folder in kernel_caches().values()}
        return sorted({private_folder(), scratch_home(), *caches})
    except ResourceError as error:
        return error


def check_room(
    name: str,
    folder: Path,
    needed_gib: float,
    advice: str,
    is_for_ray: bool = False,
    least_gib: float | None = None,
) -> Check:
    """Check the free space of the disk that holds `folder`, also when the folder does not exist yet.

    Less than `least_gib` (default: `needed_gib`) fails, less than twice `needed_gib` warns. With `is_for_ray`, a disk
    that is fuller than Ray accepts fails, too.
    """
    usage = call_within(HANG_S, lambda: _usage(folder), None)
    if usage is None:
        return Check(name, FAIL, f"{folder} has not answered for {HANG_S:.0f} s", "is its file server up?")
    if isinstance(usage, OSError):
        return Check(name, FAIL, f"{folder} cannot be used: {usage}", advice)
    total, free = usage
    found = f"{folder}: {free / GIB:,.1f} GiB free, {needed_gib:,.1f} needed"
    if free < (needed_gib if least_gib is None else least_gib) * GIB:
        return Check(name, FAIL, found, advice)
    if is_for_ray and free < (1 - RAY_FULL) * total:
        found = f"{found}, and it is {1 - free / total:.0%} full: above {RAY_FULL:.0%} Ray puts nothing aside"
        return Check(name, FAIL, found, advice)
    if free < 2 * needed_gib * GIB:
        return Check(name, WARN, found, advice)
    return Check(name, OK, found)


def check_limits(config: BroRLConfig) -> Iterator[Check]:
    """Check this machine's limits of open files, of processes and, for InfiniBand, of locked memory."""
    processes = _processes(config)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # Ray raises the soft limit to the hard one
    wanted = max(FILES_AT_LEAST, FILES_PER_PROCESS * processes * config.trainer.num_nodes)
    advice = f"raise it to {wanted} or more (ulimit -Hn, LimitNOFILE of slurmd, --ulimit of the container)"
    yield _limit("open files", files, FILES_AT_LEAST // 4, wanted, advice)
    least, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    of_container = _pids_limit()
    if of_container is not None and (least == resource.RLIM_INFINITY or of_container < least):
        least = of_container
    wanted = THREADS_PER_PROCESS * processes
    advice = f"raise it to {wanted} or more (ulimit -u, TasksMax, pids.max of the container)"
    yield _limit("processes", least, wanted // 4, wanted, advice)
    for name, number, flag in (("size of a file", resource.RLIMIT_FSIZE, "-f"), ("memory", resource.RLIMIT_AS, "-v")):
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY:
            yield Check(name, FAIL, f"limited to {limit / GIB:.1f} GiB, and Ray needs more", f"ulimit {flag} unlimited")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if config.trainer.num_nodes > 1 and INFINIBAND.is_dir():
        if locked == resource.RLIM_INFINITY:
            yield Check("locked memory", OK, "unlimited")
            return
        advice = "write `ulimit -l unlimited`, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        yield Check("locked memory", WARN, f"{locked >> 10} KiB", f"InfiniBand pins memory: {advice}")


def check_infiniband(folder: Path = INFINIBAND, load: Callable[[str], object] = ctypes.CDLL) -> Iterator[Check]:
    """Check that the library by which NCCL uses this node's InfiniBand cards loads, if there are cards."""
    cards = sorted(os.listdir(folder)) if folder.is_dir() else []
    try:
        if cards:
            load("libibverbs.so.1")
            yield Check("infiniband", OK, ", ".join(cards))
    except OSError as error:
        advice = "NCCL would talk TCP between nodes, without an error: install libibverbs1 and ibverbs-providers"
        yield Check("infiniband", WARN, f"{', '.join(cards)}, but {error}", advice)


def check_memory(config: BroRLConfig, shape: ModelShape | None) -> Check:
    """Check that a run on CPU fits into the free host memory.

    For a run on GPUs the free host memory is reported, without a verdict.
    """
    free = available_gib()
    if free is None:
        return Check("memory", WARN, "unknown: neither /proc/meminfo nor the container's limit can be read")
    if config.trainer.num_gpus > 0 or shape is None:
        return Check("memory", OK, f"{free:,.1f} GiB free")
    config, _ = resolve_sizes(config, shape, this_machine())
    needed = needed_gib(config, shape)
    found = f"{free:,.1f} GiB free, about {needed:.1f} needed"
    advice = "lower generation.num_engines, generation.kv_cache_gib or policy.tokens_per_micro_batch"
    if needed > free:
        return Check("memory", FAIL, found, advice)
    if needed > 0.85 * free:
        return Check("memory", WARN, found, advice)
    return Check("memory", OK, found)


def check_ports(ports: Sequence[int]) -> Check:
    """Check that no process listens on the ports that the Slurm job is going to use."""
    taken = [port for port in ports if not _is_free(port)]
    if not taken:
        return Check("ports", OK, f"{len(ports)} of the job are free")
    named = ", ".join(map(str, taken[:8]))
    if len(taken) > 8:
        named += " …"
    advice = (
        f"who listens there: ss -ltnp 'sport = :{taken[0]}'. A Ray that another job left behind? End it, or choose "
        "other ports"
    )
    return Check("ports", FAIL, f"{len(taken)} of {len(ports)} are taken: {named}", advice)


def _usage(folder: Path) -> tuple[int, int] | OSError:
    """Return the total and the free bytes of the disk that holds, or would hold, a folder."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        if not os.access(there, os.W_OK):
            return PermissionError(f"{there} cannot be written")
        usage = shutil.disk_usage(there)
    except OSError as error:
        return error
    return usage.total, usage.free


def _processes(config: BroRLConfig) -> int:
    """Return roughly how many processes a run starts on a node.

    They are ranks, engines and their workers, verifiers, and Ray's own processes.
    """
    nodes = max(config.trainer.num_nodes, 1)
    verifiers = 2 * config.rewards.num_workers
    sizes = RunSizes.from_config(config)
    actors = sizes.num_ranks + 2 * sizes.num_engines
    return 16 + verifiers + actors // nodes


def _limit(
    name: str,
    limit: int,
    least: int,
    wanted: int,
    advice: str,
) -> Check:
    if limit == resource.RLIM_INFINITY:
        return Check(name, OK, "unlimited")
    if limit >= wanted:
        return Check(name, OK, f"{limit:,}")
    status = FAIL if limit < least else WARN
    return Check(name, status, f"{limit:,}, {wanted:,} may be needed", advice)


def _pids_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((cgroup / "pids.max").read_text(encoding="ascii"))
    return None


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not count, listeners do
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True
