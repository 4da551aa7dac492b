"""Run Ray on one node of a job, from its start to its last process.

`python -m brorl_launcher.job.ray_node --gpus N [--join HOST:PORT]` is a job step on every node. Its standard output
goes to the job's queue of events (job_events.sh): `up head ADDRESS` as soon as the head's address is known, `dead NODE
reason` when Ray ends by itself. SIGUSR1 or SIGTERM ends Ray and every process that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import psutil
from brorl_graders.base.private_folder import private_folder

from brorl_launcher.job.ray_ports import (
    NUM_PORTS,
    RayPorts,
    address_of,
    check_ports,
    interface_address,
    own_address,
)
from nemo_brorl.config.run_sizes import CPUS_PER_GPU
from nemo_brorl.core.console import write_error, write_out
from nemo_brorl.core.errors import USER_ERROR, ResourceError
from nemo_brorl.core.private_folder import kernel_caches
from nemo_brorl.core.processes import children_but, end_processes

STOP_S = 8  # seconds for `ray start --block` to end its processes
SWEEP_S = 2.0  # seconds from SIGTERM to SIGKILL for processes that Ray leaves
KNOCK_S = 0.2  # seconds between two attempts to reach the head
KNOCK_TIMEOUT_S = 5.0
TAIL = 15  # log lines shown
# Messages of a Ray that was too slow: it allows itself 30 s to start, which nothing can change, and on a busy node that
# is too short. The second one appears on a node whose head was too slow.
TOO_SLOW = (b"timed out during startup", b"No node info found for head node")
START_TRIES = 4
SMALL_ACTOR_SLOTS = 32
# <sys/prctl.h>: orphans below this process become its children, so that all of them can be ended
PR_SET_CHILD_SUBREAPER = 36


def main(argv: Sequence[str]) -> int:
    """Run Ray on this node of a Slurm job until Ray ends, and return the exit code.

    0: ended on request, 1: Ray ended by itself, 2: Ray could not be started here.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--join", metavar="HOST:PORT", help="the head's address; without it this is the head")
    parser.add_argument(
        "--peer", default="", help="another node of the job: the head's address is the one it has on the way there"
    )
    parser.add_argument("--interface", default="", help="network interface whose address is taken instead")
    parser.add_argument("--ports", type=int, default=20000, help=f"first of {NUM_PORTS} ports")
    parser.add_argument("--object-store-gb", type=float, default=0.0, help="0: Ray's default")
    parser.add_argument("--slots", type=int, default=0, help="Ray's CPU slots; 0: by the number of GPUs")
    parser.add_argument("--logs", type=Path, default=Path())
    options = parser.parse_args(argv)
    try:
        folder = session_folder()
        os.environ.update(kernel_caches())  # inherited by Ray and its actors
        address = choose_address(options.interface, options.join, options.peer)
        ports = RayPorts(options.ports)
        check_ports(ports, is_head=options.join is None)
    except (OSError, ResourceError) as error:
        return report_start_failure(str(error))
    if options.join is None:
        send_event(f"up head {address}")
    with RayNode(node_name(), options.logs, folder) as node:
        return node.run(ray_command(options, address, ports, folder), options.join)


def session_folder() -> Path:
    """Return the path of Ray's session folder on this node, inside the user's private folder.

    Raises ResourceError when another user could write to the private folder.
    """
    return private_folder() / session_name(os.environ.get("SLURM_JOB_ID", str(os.getpid())), node_name())


def session_name(job: str, node: str) -> str:
    """Return the name of Ray's session folder for a Slurm job on a node.

    The name differs from node to node, because nodes may share a disk. It has ten characters, because the paths of the
    sockets in the folder have a limit.
    """
    return hashlib.sha256(f"{job} {node}".encode()).hexdigest()[:10]


def choose_address(interface: str, head: str | None, peer: str) -> str:
    """Return the IP address at which the other nodes of a job reach this node.

    It is the address of the network interface `interface` where that is given, else the one on the way to the Ray head,
    or from the head to the node `peer`. Raises OSError when there is no such address.
    """
    if interface:
        return interface_address(interface)
    if head is not None:
        return own_address(head.rpartition(":")[0])
    return own_address(address_of(peer)) if peer else "127.0.0.1"


def ray_command(
    options: argparse.Namespace,
    address: str,
    ports: RayPorts,
    folder: Path,
) -> list[str]:
    """Return the `ray start` command of this node, with every port given.

    On a busy node Ray waits half a minute for each port that is not given, and then gives up.
    """
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
        f"--node-ip-address={address}",
    ]
    command += [f"--temp-dir={folder}", f"--num-gpus={options.gpus}", *ports.options()]
    command.append(f"--num-cpus={options.slots or cpu_slots(options.gpus)}")
    if options.object_store_gb:
        command.append(f"--object-store-memory={int(options.object_store_gb * 1e9)}")
    if options.join is None:
        return [*command, "--head", "--include-dashboard=false", "--no-monitor", *ports.head_options()]
    return [*command, f"--address={options.join}"]


def cpu_slots(num_gpus: int) -> int:
    """Return the number of Ray's CPU slots on a node: those of the bundles of its GPUs, and 32 more.

    A slot is room for actors, not a core. A verifier, and on CPU a rank or an engine, takes a tenth of a slot.
    """
    return CPUS_PER_GPU * num_gpus + SMALL_ACTOR_SLOTS


class RayNode:
    """The Ray processes of one node and their scratch folder, as a context that leaves neither behind."""

    def __init__(self, name: str, logs: Path, folder: Path) -> None:
        self.name = name
        self.logs = logs
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.is_asked_to_end = False

    def __enter__(self) -> RayNode:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, self._on_signal)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (hard, hard)
        )  # Ray opens a file for each worker and each object that it moves
        shutil.rmtree(self.folder, ignore_errors=True)  # left by an earlier try that was cut off
        return self

    def wait_for_head(self, head: str) -> None:
        """Wait until Ray's head node accepts connections, without a time limit.

        `ray start` itself would give up after seconds. When the head never starts, the job's own deadline ends the
        wait.
        """
        host, _, port = head.rpartition(":")
        while not self.is_asked_to_end:
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), timeout=KNOCK_TIMEOUT_S).close()
                return
            time.sleep(KNOCK_S)

    def run(self, command: Sequence[str], head: str | None = None) -> int:
        """Run Ray on this node until it ends, and return the exit code of this Slurm job step.

        Where Ray was too slow to start, it is started again, up to START_TRIES times. `head` is HOST:PORT of Ray's
        head, and each start waits until the head accepts connections.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for number in range(1, START_TRIES + 1):
            if head is not None:
                self.wait_for_head(head)
            code, said = self._run_once(command)
            if self.is_asked_to_end:
                return 0
            is_slow = any(text in said for text in TOO_SLOW)
            if not is_slow or number == START_TRIES:
                break
            write_error(f"{self.name}: Ray did not start within its own 30 s (try {number} of {START_TRIES})\n")
            self._clear()
        send_event(f"dead {self.name} Ray ended by itself with exit code {code}")
        self._show_logs()
        return 1

    def _run_once(self, command: Sequence[str]) -> tuple[int, bytes]:
        """Run Ray on this node once, and return Ray's exit code and output."""
        path = self.logs / f"ray_{self.name}.log"
        with path.open("ab") as log:
            begins_at = log.tell()
            # Ray gets a session of its own. srun signals the whole process group, and Ray's processes must end in
            # order.
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            if self.is_asked_to_end:
                self.process.terminate()
            code = self.process.wait()
        return code, path.read_bytes()[begins_at:]

    def _clear(self) -> None:
        """End the processes that Ray started and left behind, and delete Ray's session folder."""
        for process in children_but(()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        end_processes(children_but(()), SWEEP_S)
        # Processes that were started meanwhile are killed at once.
        end_processes(children_but(()), 0.0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *exception: object) -> None:
        self._clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """End Ray on this node after a signal, so that `run` returns.

        Ray first gets STOP_S seconds to end its own processes. Then an alarm signal has it killed.
        """
        if self.process is not None and number == signal.SIGALRM:
            self.process.kill()
        elif self.process is not None and not self.is_asked_to_end:
            self.process.terminate()
            signal.alarm(STOP_S)
        self.is_asked_to_end = True

    def _show_logs(self) -> None:
        """Print the last lines of Ray's logs to standard error, and copy the whole files next to the job's logs."""
        kept = self.logs / f"ray_{self.name}"
        with contextlib.suppress(OSError):  # Ray may have ended before it wrote logs
            shutil.copytree(
                self.folder / "session_latest" / "logs",
                kept,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("worker-*"),
            )
        for path in (
            self.logs / f"ray_{self.name}.log",
            kept / "raylet.out",
            kept / "raylet.err",
            kept / "gcs_server.out",
        ):
            if path.is_file() and (lines := path.read_text(errors="replace").splitlines()):
                write_error(
                    f"{self.name}: last lines of {path}:\n"
                    + "".join(f"{self.name}:   {line}\n" for line in lines[-TAIL:])
                )


def node_name() -> str:
    """Return Slurm's name of this node, or its host name without the domain."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def send_event(event: str) -> None:
    """Print an event to standard output, which is the Slurm job's queue of events."""
    write_out(event + "\n")


def report_start_failure(reason: str) -> int:
    """Report to the Slurm job's queue of events why Ray cannot start on this node, and return the exit code."""
    send_event(f"dead {node_name()} {reason}")
    return USER_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
