"""Start and end a Ray cluster, or connect to the running one that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import psutil
import ray

from nemo_brorl.cluster import ray_adapter
from nemo_brorl.cluster.ray_sessions import remove_old_sessions
from nemo_brorl.cluster.ray_watch import ESSENTIAL, LOOK_S, START_S, RayWatch, watched_start
from nemo_brorl.cluster.reaper import Reaper
from nemo_brorl.config.trainer import TrainerConfig
from nemo_brorl.core.console import get_logger, write_error
from nemo_brorl.core.errors import LOST, BroRLError, RayLostError, ResourceError
from nemo_brorl.core.private_folder import INDUCTOR, kernel_caches, private_folder
from nemo_brorl.core.processes import END_S, children_but, end_processes, name_of, with_descendants

log = get_logger(__name__)

CPU_OBJECT_STORE_BYTES = 1 << 30
# Ray's CPU slots are logical: actors reserve fractions of a slot and share the cores in time.
MIN_LOCAL_CPUS = 2
TOKEN_SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# Environment variable with the number of malloc arenas. The GNU C library reads it when a process starts.
HEAPS = "MALLOC_ARENA_MAX"
START_TRIES = 3
ADDRESS_S = 2.0  # seconds in which a cluster must answer
WHAT_IS_LOST = (
    "Ray's {} is gone (killed, or out of memory?), and with it engines and policy. "
    "The same command goes on from the last checkpoint"
)
TOO_LATE = (
    f"Ray has not started after {START_S:.0f} s, though none of its processes is lost: the same command may succeed"
)


class RayCluster:
    """A context inside which Ray is up. On exit everything that was started here has ended.

    With RAY_ADDRESS (a Slurm job sets it) it connects, checks that the cluster has the configured GPUs, and leaves the
    cluster running. Otherwise it starts Ray's processes itself:

    - Clients need the token of this process.
    - Sockets are in a folder that other users cannot enter. RAY_TMPDIR names another one.
    - Inductor's compiled kernels are in such a folder too (TORCHINDUCTOR_CACHE_DIR). Otherwise another user could
      create Inductor's default folder in /tmp first.
    - A watch ends the run when an essential process of Ray is lost. Ray itself would report nothing for a minute or
      more.
    - A reaper ends Ray's processes when this process is killed.

    BRORL_ACTOR_LOGS=1 shows the actors' own output.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self._is_ours = "RAY_ADDRESS" not in os.environ
        self._processes: list[psutil.Process] = []  # processes of a Ray that was started here
        self._watch: RayWatch | None = None
        self._reaper: Reaper | None = None

    def __enter__(self) -> RayCluster:
        if self._is_ours and not any(name in os.environ for name in TOKEN_SETTINGS):
            # By default Ray keeps a token in a file of the home folder. It reads ours only once, so all clusters of a
            # process share one token.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        if self._is_ours:
            # Actors inherit the environment.
            os.environ.update(kernel_caches([INDUCTOR]))
            self._reaper = Reaper()
        else:
            check_address(os.environ["RAY_ADDRESS"])
        before = set(psutil.Process().children(recursive=True))
        try:
            self._connect(before)
        except BroRLError:
            self.close()
            raise
        except (ConnectionError, RuntimeError, OSError) as error:
            self.close()
            raise ResourceError(
                f"Ray did not start: {error}. Is RAY_ADDRESS right, /dev/shm large enough (1 GiB), /tmp writable?"
            ) from error
        if self._is_ours:
            self._processes = children_but(before)
            essential = [process for process in self._processes if name_of(process) in ESSENTIAL]
            self._watch = RayWatch(essential, self._end_run)
            self._watch.start()
        self.check_gpus()
        return self

    def check_gpus(self) -> None:
        """Raise ResourceError when the Ray cluster has fewer GPUs than configured."""
        num_configured = self.config.gpus_per_node * self.config.num_nodes
        if num_configured == 0:
            return
        num_available = int(ray.cluster_resources().get("GPU", 0))
        if num_available < num_configured:
            self.close()
            raise ResourceError(
                f"the cluster has {num_available} GPUs, trainer.num_nodes × trainer.gpus_per_node asks for "
                f"{num_configured}: set them to what is there, or trainer.gpus_per_node=0 to run on CPU"
            )

    def close(self) -> None:
        """Disconnect from Ray, and end all processes of Ray if this process started the cluster."""
        if self._watch is not None:
            self._watch.close()
        started = with_descendants(self._processes)
        ray.shutdown()
        num_left = end_processes(started, END_S)
        if num_left:
            log.warning("%d processes of Ray's had not ended %.0f s after it and were killed", num_left, END_S)
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._lost() if isinstance(error, Exception) else None
        self.close()
        if lost is not None:
            raise RayLostError(WHAT_IS_LOST.format(lost)) from error

    def _lost(self) -> str | None:
        """Return the name of an essential Ray process that has ended or ends within `LOOK_S` seconds, else None.

        The driver may see an error that follows from the loss before the thread that watches Ray's processes sees the
        loss.
        """
        if self._watch is None:
            return None
        self._watch.close()
        deadline = time.monotonic() + LOOK_S
        lost = self._watch.look()
        while lost is None and time.monotonic() < deadline:
            time.sleep(LOOK_S / 10)
            lost = self._watch.look()
        return lost

    def _connect(self, before: Collection[psutil.Process]) -> None:
        """Connect to the Ray cluster, or start one.

        `before` are the processes that existed before Ray. Raises the errors of `start_ray`.
        """

        def start() -> None:
            with self._watched(before), self._marking(), self._one_heap(), ray_adapter.without_monitor():
                ray.init(**self._options())

        if self._is_ours:
            start_ray(start, before)
        else:
            start()

    def _watched(self, before: Collection[psutil.Process]) -> AbstractContextManager[None]:
        """Return a context for Ray's start that ends this process if a Ray process is lost or Ray starts too slowly."""

        def end(message: str) -> None:
            self._processes = children_but(before)
            self._end_process(message)

        return watched_start(before, lambda name: end(WHAT_IS_LOST.format(name)), lambda: end(TOO_LATE))

    def _marking(self) -> AbstractContextManager[None]:
        return nullcontext() if self._reaper is None else self._reaper.marking()

    @contextmanager
    def _one_heap(self) -> Iterator[None]:
        """Give processes that start inside this context a single malloc arena, unless the environment sets the number.

        With an arena for each of dozens of threads a process's memory grows for thousands of steps. That was measured
        on CPU, and only there the limit is set.
        """
        if self.config.gpus_per_node > 0 or HEAPS in os.environ:
            yield
            return
        os.environ[HEAPS] = "1"
        try:
            yield
        finally:
            del os.environ[HEAPS]

    def _options(self) -> dict[str, Any]:
        """Return the arguments of `ray.init` for this run."""
        options: dict[str, Any] = {
            "namespace": f"brorl-{os.getpid()}",
            "log_to_driver": os.environ.get("BRORL_ACTOR_LOGS") == "1",
            "logging_level": logging.ERROR,
        }
        if not self._is_ours:
            options["address"] = os.environ["RAY_ADDRESS"]
            return options
        options["include_dashboard"] = False
        sessions = None
        if "RAY_TMPDIR" not in os.environ:
            # Every user may enter Ray's default folder.
            sessions = private_folder() / "ray"
            remove_old_sessions(sessions)
        options |= ray_adapter.system_options(sessions)
        if self.config.gpus_per_node == 0:
            options["num_cpus"] = max(os.cpu_count() or 1, MIN_LOCAL_CPUS)
            options["num_gpus"] = 0
            options["object_store_memory"] = CPU_OBJECT_STORE_BYTES
        return options

    def _end_run(self, name: str) -> None:
        """End this process after the loss of a Ray process, with an error message.

        Files that were saved are complete. All other state is in Ray actors, which have ended or cannot be reached.
        """
        self._end_process(WHAT_IS_LOST.format(name))

    def _end_process(self, message: str) -> None:
        """Print an error message, and at once end this process and all processes that Ray started."""
        write_error(f"\nerror: {message}\n")
        end_processes(with_descendants(self._processes), 0.0)
        os._exit(LOST)


def check_address(address: str) -> None:
    """Raise ResourceError where RAY_ADDRESS names a host and a port at which nobody answers for two seconds.

    Ray itself would try for minutes.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    deadline = time.monotonic() + ADDRESS_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ADDRESS_S).close()
        except (OSError, OverflowError) as error:
            if time.monotonic() < deadline and not isinstance(error, (OverflowError, socket.gaierror)):
                time.sleep(ADDRESS_S / 10)
                continue
            raise ResourceError(
                f"RAY_ADDRESS={address}: nobody answers there ({error}); unset RAY_ADDRESS to start a cluster here, or "
                "set it to the address of a cluster that runs"
            ) from error
        return


def start_ray(start: Callable[[], object], before: Collection[psutil.Process]) -> None:
    """Start a Ray cluster by calling `start`, up to START_TRIES times.

    On a busy machine a time limit inside Ray may pass, or a process of Ray may be lost. Processes of a failed try, such
    as a control store (GCS) that Ray forgets, are ended before the next try. `before` are the processes that existed
    before Ray. Raises RayLostError after the last try. Any other error of `start` is raised at once.
    """
    for attempt in range(1, START_TRIES + 1):
        try:
            start()
        except Exception as error:
            if not ray_adapter.is_lost_at_start(error):
                raise
            ray.shutdown()
            end_processes(with_descendants(children_but(before)), 0.0)
            if attempt == START_TRIES:
                raise RayLostError(
                    f"Ray did not start within its 30 s, {START_TRIES} times: is the machine overloaded, or ulimit low?"
                ) from error
            log.warning("Ray did not start within its 30 s, or a process of it was lost: another try")
        else:
            return
