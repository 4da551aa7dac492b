"""A throw-away Slurm cluster for tests, and its jobs. `start_cluster.sh` says how it is made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
LOCK = Path("/var/tmp/brorl_cluster.lock")
TURN_S = 1800
TRIES = 10
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")


def why_not() -> str:
    """Why this machine cannot run a cluster; nothing: ""."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not installed (tests/cluster/install_slurm.sh)"
    if os.geteuid() != 0:
        return "virtual nodes need root"
    probe = subprocess.run(
        ["unshare", "--pid", "--net", "--mount", "--fork", "true"], capture_output=True, text=True, check=False
    )
    return f"no namespaces: {probe.stderr.strip()}" if probe.returncode else ""


@contextlib.contextmanager
def eight_nodes() -> Iterator[SlurmCluster]:
    """A cluster of 8 nodes with 8 GPUs each, once others of this machine are gone."""
    with LOCK.open("w") as lock:
        wait_for_turn(lock)
        for left in Path("/var/tmp").glob("brorl_cluster_*/pids"):  # nobody else has the lock: those who made them died
            SlurmCluster(left.parent, num_nodes=8, num_gpus=8).stop()
            shutil.rmtree(left.parent, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="brorl_cluster_", dir="/var/tmp"))
        try:
            with SlurmCluster(folder, num_nodes=8, num_gpus=8) as running:
                yield running
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def wait_for_turn(lock: IO[str]) -> None:
    """Its networks have fixed names, so a machine has one such cluster at a time."""
    deadline = time.monotonic() + TURN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            assert time.monotonic() < deadline, f"another cluster has been up for {TURN_S} s ({LOCK} is locked)"
            time.sleep(1)


class SlurmCluster:
    """A running cluster; a context."""

    def __init__(self, folder: Path, num_nodes: int, num_gpus: int) -> None:
        self.folder = folder
        self.shared = folder / "shared"  # a folder that all nodes see; their /tmp is their own
        self.num_nodes, self.num_gpus = num_nodes, num_gpus
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> SlurmCluster:
        sizes = {"NODES": str(self.num_nodes), "GPUS": str(self.num_gpus), "GRACE": "60"}
        done = self._script("start_cluster.sh", sizes)
        if done.returncode:
            self._script("stop_cluster.sh", {})
        assert done.returncode == 0, done.stdout + done.stderr
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all of its processes and networks."""
        done = self._script("stop_cluster.sh", {})
        assert not done.stderr, done.stderr

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command of Slurm's, in the repository."""
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submit(self, name: str, *command: str, **environment: str) -> Job:
        """Run `sbatch COMMAND`; the job's files are in `shared/NAME`."""
        folder = self.shared / name
        folder.mkdir()
        settings = {
            "BRORL_JOB_FOLDER": str(folder / "job"),
            "BRORL_PYTHON": sys.executable,
            "BRORL_OBJECT_STORE_GB": "0.2",
            "BRORL_SKIP_DOCTOR": "1",
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        done = self.run("sbatch", "--parsable", f"--output={folder / 'log'}", *command, environment=settings)
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip(), folder)

    def first_process(self, node: str) -> int:
        """Of a virtual node; the parent of all others there."""
        return int((self.folder / "nodes" / f"{node}.pid").read_text())

    def processes(self, node: str) -> list[str]:
        """What runs on a node beside Slurm's own daemons."""
        found = []
        for process in psutil.Process(self.first_process(node)).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(" ".join(process.cmdline())[:200])
        own = (str(self.folder / "nodes"), "slurmd ", "slurmstepd")
        return [command for command in found if command and not any(name in command for name in own)]

    def stop_process(self, node: str, name: str) -> None:
        """SIGSTOP for those of a node whose command has this in it."""
        for process in psutil.Process(self.first_process(node)).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in " ".join(process.cmdline()):
                    process.suspend()

    def leftovers(self) -> list[str]:
        """Processes and scratch folders that jobs have left on nodes that are up."""
        nodes = [f"node{number}" for number in range(self.num_nodes)]
        up = [node for node in nodes if psutil.pid_exists(self.first_process(node))]
        left = [f"{node}: {process}" for node in up for process in self.processes(node)]
        return left + [
            str(path) for node in up for path in (self.folder / "nodes" / node / "tmp").glob("brorl-*/*/session_*")
        ]

    def idle_nodes(self) -> list[str]:
        """That the next job will get, the first ones first."""
        return self.run(
            "sinfo", "--noheader", "--Node", "--partition=batch", "--states=idle", "--format=%N"
        ).stdout.split()

    @contextlib.contextmanager
    def listening(self, node: str, port: int) -> Iterator[None]:
        """Inside, something of somebody else's listens on a node."""
        program = f"import socket, time; kept = socket.create_server(('', {port})); print(flush=True); time.sleep(3600)"
        command = ["nsenter", f"--net=/run/netns/brorln{node.removeprefix('node')}", sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield
            process.kill()

    def power_off(self, node: str) -> None:
        """Cut a node's cable and kill its first process: everything there ends at once, nobody says good-bye, nobody
        answers."""
        subprocess.run(["ip", "link", "set", f"brorle{node.removeprefix('node')}", "down"], check=True)
        os.kill(self.first_process(node), signal.SIGKILL)

    def power_on(self, node: str) -> None:
        """Start a node that was powered off, with nothing in its /tmp. It is there once Slurm has heard of it."""
        done = self._script("power_on.sh", {}, node.removeprefix("node"))
        assert done.returncode == 0, done.stderr

    def mend(self, seconds: float) -> None:
        """Start all nodes again that were powered off, and wait, at most so long, until Slurm gives them out."""
        nodes = [f"node{number}" for number in range(self.num_nodes)]
        off = [node for node in nodes if not psutil.pid_exists(self.first_process(node))]
        for node in off:
            self.power_on(node)
        deadline = time.monotonic() + seconds
        while not set(off) <= set(self.idle_nodes()):
            assert time.monotonic() < deadline, self.run("sinfo", "--Node", "--long").stdout
            time.sleep(1)

    def _script(self, name: str, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(HERE / name), str(self.folder), *arguments]
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=180, check=False
        )


@dataclass(frozen=True)
class Job:
    """A submitted job."""

    cluster: SlurmCluster
    id: str
    folder: Path

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def field(self, name: str) -> str:
        """Of `scontrol show job`, which may have to be asked again on a busy machine."""
        for _ in range(TRIES):
            done = self.cluster.run("scontrol", "--oneliner", "show", "job", self.id)
            found = re.search(rf"\b{name}=(\S*)", done.stdout)
            if found is not None:
                return found.group(1)
            time.sleep(1)
        raise AssertionError(f"no {name} in {done.stdout!r}: {done.stderr}")

    @property
    def state(self) -> str:
        return self.field("JobState")

    @property
    def exit_code(self) -> int:
        return int(self.field("ExitCode").partition(":")[0])

    @property
    def nodes(self) -> list[str]:
        """That it runs on."""
        return self.cluster.run("scontrol", "show", "hostnames", self.field("NodeList")).stdout.split()

    def wait(self, seconds: float) -> str:
        """Until it has ended; the state it ended in."""
        self.until(lambda: self.state in ENDED, seconds)
        return self.state

    def until(self, condition: Callable[[], bool], seconds: float, while_running: bool = False) -> None:
        """Wait for something that the job brings about, with `while_running` before it ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert not while_running or self.state not in ENDED, (
                f"job {self.id} ended, {self.state}:\n{self.log[-6000:]}"
            )
            assert time.monotonic() < deadline, (
                f"waited {seconds} s for job {self.id}, {self.state}:\n{self.log[-6000:]}"
            )
            time.sleep(0.2)

    def until_says(self, text: str, seconds: float, times: int = 1) -> None:
        """Wait until its log holds a text so often."""
        self.until(lambda: self.log.count(text) >= times or self.state in ENDED, seconds)
        assert self.log.count(text) >= times, (
            f"job {self.id} ended, {self.state}, without saying {text!r}:\n{self.log[-6000:]}"
        )

    def cancel(self, *options: str) -> None:
        """`scancel`; with `--batch --signal=USR1` what Slurm does before the time limit."""
        done = self.cluster.run("scancel", *options, self.id)
        assert done.returncode == 0, done.stderr
