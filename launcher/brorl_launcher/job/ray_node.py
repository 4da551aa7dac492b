"""Ray on one node of a job, from its start to its last process.

`python -m brorl_launcher.job.ray_node --gpus N [--join HOST:PORT]` is a job step on every node. Standard output is
the job's queue of events (job_events.sh): `up head ADDRESS` as soon as the head's address is known,
`dead NODE reason` when Ray ends by itself. On SIGUSR1 or SIGTERM Ray is ended, and whatever it has started."""

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
from nemo_brorl.core.errors import USER_ERROR, ResourceError
from nemo_brorl.core.private_folder import kernel_caches
from nemo_brorl.core.processes import children_but, end_processes

STOP_S = 8  # for `ray start --block` to end its processes
SWEEP_S = 2.0  # for what it leaves behind, asked to end, until it is killed
KNOCK_S = 0.2  # between two looks whether the head is there
KNOCK_TIMEOUT_S = 5.0
TAIL = 15  # lines of a log that are shown
# Ray's own words on a busy node, when 30 s, which nothing can change, were too short for it, and on one that came to a
# head of which that was so
TOO_SLOW = (b"timed out during startup", b"No node info found for head node")
START_TRIES = 4
# <sys/prctl.h>: orphans below this process become its children, so that none is lost sight of
PR_SET_CHILD_SUBREAPER = 36


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 ended when asked to, 1 Ray ended by itself, 2 it could not be started here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--join", metavar="HOST:PORT", help="the head's address; without it this is the head")
    parser.add_argument(
        "--peer", default="", help="another node of the job: the head's address is the one it has on the way there"
    )
    parser.add_argument("--interface", default="", help="network interface whose address is taken instead")
    parser.add_argument("--ports", type=int, default=20000, help=f"first of {NUM_PORTS} ports")
    parser.add_argument("--object-store-gb", type=float, default=0.0, help="0: Ray's default")
    parser.add_argument("--logs", type=Path, default=Path())
    options = parser.parse_args(argv)
    try:
        folder = session_folder()
        os.environ.update(kernel_caches())  # Ray and its actors inherit it
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
    """Return the path of Ray's folder on this node, inside the user's private folder. Raises ResourceError."""
    return private_folder() / session_name(os.environ.get("SLURM_JOB_ID", str(os.getpid())), node_name())


def session_name(job: str, node: str) -> str:
    """Name the folder of a job's Ray on a node.

    The name differs from node to node, because nodes may share a disk. It has ten characters, because the paths of the
    sockets in the folder have a limit.
    """
    return hashlib.sha256(f"{job} {node}".encode()).hexdigest()[:10]


def choose_address(interface: str, head: str | None, peer: str) -> str:
    """The address that other nodes reach this one by. Raises OSError."""
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
    """`ray start` for this node. All ports are given: for those that are not, Ray waits half a minute on a busy node,
    and gives up."""
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
    if "SLURM_CPUS_ON_NODE" in os.environ:
        command.append(f"--num-cpus={os.environ['SLURM_CPUS_ON_NODE']}")
    if options.object_store_gb:
        command.append(f"--object-store-memory={int(options.object_store_gb * 1e9)}")
    if options.join is None:
        return [*command, "--head", "--include-dashboard=false", *ports.head_options()]
    return [*command, f"--address={options.join}"]


class RayNode:
    """Ray's processes of one node and their scratch folder. A context: nothing of either is left afterwards."""

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
        )  # Ray has a file open for every worker and every object it moves
        shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier try that was cut off
        return self

    def wait_for_head(self, head: str) -> None:
        """Until the head listens, however long it takes: `ray start` gives up after seconds. The job's deadline ends a
        wait in vain."""
        host, _, port = head.rpartition(":")
        while not self.is_asked_to_end:
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), timeout=KNOCK_TIMEOUT_S).close()
                return
            time.sleep(KNOCK_S)

    def run(self, command: Sequence[str], head: str | None = None) -> int:
        """Until Ray ends. Where it was too slow to start, it is started again, once the head (HOST:PORT) listens.
        Returns the exit code of this step."""
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
            sys.stderr.write(f"{self.name}: Ray did not start within its own 30 s (try {number} of {START_TRIES})\n")
            sys.stderr.flush()
            self._clear()
        send_event(f"dead {self.name} Ray ended by itself with exit code {code}")
        self._show_logs()
        return 1

    def _run_once(self, command: Sequence[str]) -> tuple[int, bytes]:
        """Ray's exit code and what it has written."""
        path = self.logs / f"ray_{self.name}.log"
        with path.open("ab") as log:
            begins_at = log.tell()
            # In a session of its own: srun hands signals on to the whole process group, and Ray's are to be ended in
            # order.
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            if self.is_asked_to_end:
                self.process.terminate()
            code = self.process.wait()
        return code, path.read_bytes()[begins_at:]

    def _clear(self) -> None:
        """End what Ray has started and left, and delete its folder."""
        for process in children_but(()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        end_processes(children_but(()), SWEEP_S)
        # What was started meanwhile is not asked.
        end_processes(children_but(()), 0.0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *exception: object) -> None:
        self._clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """End Ray; `run` then returns. Ray is given its time first, as it knows its own processes best; then the alarm
        goes off."""
        if self.process is not None and number == signal.SIGALRM:
            self.process.kill()
        elif self.process is not None and not self.is_asked_to_end:
            self.process.terminate()
            signal.alarm(STOP_S)
        self.is_asked_to_end = True

    def _show_logs(self) -> None:
        """The last lines of what Ray wrote, to standard error; whole files go beside the job's logs."""
        kept = self.logs / f"ray_{self.name}"
        with contextlib.suppress(OSError):  # it may have ended before it wrote any
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
                sys.stderr.write(
                    f"{self.name}: last lines of {path}:\n"
                    + "".join(f"{self.name}:   {line}\n" for line in lines[-TAIL:])
                )
        sys.stderr.flush()


def node_name() -> str:
    """As Slurm calls this node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def send_event(event: str) -> None:
    """Put an event into the job's queue."""
    sys.stdout.write(event + "\n")
    sys.stdout.flush()


def report_start_failure(reason: str) -> int:
    """Say why Ray cannot be started on this node."""
    send_event(f"dead {node_name()} {reason}")
    return USER_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
