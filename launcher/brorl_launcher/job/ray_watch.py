"""Watch the nodes of a job: wait until all of them have joined Ray, then report the first one that is lost.

`python -m brorl_launcher.job.ray_watch --address HOST:PORT --gpus N --nodes NAME …` is a job step next to Ray's head.
Its standard output goes to the job's queue of events. `ready watch …` comes once every node has joined, with an address
of its own and all its GPUs. `lost NODE reason` names a host that does not answer, also one that has not joined yet.
`dead NODE reason` names a host that answers without its Ray. SIGUSR1 ends the watch. The job's own deadline ends a wait
in vain. Meanwhile standard error names the missing nodes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray

from brorl_launcher.job.ray_ports import RayPorts
from nemo_brorl.core.console import write_error

LOOK_S = 0.25  # seconds between looks while nodes join
WATCH_S = 1.0  # seconds between looks later: Ray itself notices a loss within seconds
SAY_S = 15.0
PROBE_S = 3.0
KNOCK_S = 4.0  # seconds between two probes of a host while Ray starts there
MAX_KNOCKS = 3  # unanswered probes in a row
WRONG = 2

Nodes = Iterable[Mapping[str, Any]]  # the form of `ray.nodes()`


def main(argv: Sequence[str]) -> int:
    """Watch the nodes of a Ray cluster until one is lost, and return the exit code.

    0: ended on request, 1: a node is lost, 2: the nodes that joined do not match the settings.
    """
    signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--gpus", type=int, required=True, help="of every node")
    parser.add_argument("--nodes", nargs="+", required=True)
    options = parser.parse_args(argv)
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries must not look like events

    def end(event: str) -> None:
        events.write(event + "\n")
        os._exit(1)

    port = RayPorts(int(options.address.rpartition(":")[2])).services(is_head=False)["node-manager-port"]
    with HostProbes(options.nodes, port, end):
        connect(options.address)
        wait_for_nodes(options.nodes)
    wrong = cluster_fault(ray.nodes(), len(options.nodes), options.gpus)
    if wrong:
        write_error(wrong + "\n")
        return WRONG
    events.write(f"ready watch {len(options.nodes)} nodes\n")
    events.write(watch() + "\n")
    return 1


def connect(address: str) -> None:
    """Connect to Ray's head, and try again while it is still starting."""
    while True:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="brorl_watch")
            return
        except (ConnectionError, RuntimeError, ValueError) as error:
            write_error(f"Ray's head is not up yet: {error}\n")
            time.sleep(LOOK_S)


def wait_for_nodes(names: Sequence[str]) -> None:
    """Wait until all named nodes have joined Ray, and print the missing ones every SAY_S seconds."""
    said_at = time.monotonic()
    while True:
        missing = missing_nodes(ray.nodes(), names)
        if not missing:
            return
        if time.monotonic() - said_at > SAY_S:
            said_at = time.monotonic()
            write_error(
                f"{len(names) - len(missing)} of {len(names)} nodes have joined Ray; missing: {', '.join(missing)}\n"
            )
        time.sleep(LOOK_S)


class HostProbes:
    """A thread that probes the hosts of a job while Ray starts on them, as a context.

    It reports the first host that does not answer MAX_KNOCKS times in a row.
    """

    def __init__(self, names: Sequence[str], port: int, on_loss: Callable[[str], None]) -> None:
        self._names = names
        self._port = port
        self._on_loss = on_loss  # the probing thread calls it with the event
        self._unanswered: Counter[str] = Counter()  # unanswered probes in a row by host
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="knocks", daemon=True)

    def __enter__(self) -> HostProbes:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(KNOCK_S):
            lost = self.probe_all()
            if lost and not self._closed.is_set():
                self._on_loss(lost)
                return

    def probe_all(self) -> str:
        """Probe the host of each node once, and return a `lost` event when one has failed MAX_KNOCKS times in a row.

        Returns an empty text when there is no such host.
        """
        for name in self._names:
            error = unreachable_reason(name, self._port)
            self._unanswered[name] = self._unanswered[name] + 1 if error else 0
            if self._unanswered[name] == MAX_KNOCKS:
                return f"lost {name} does not answer ({error}), and has not joined Ray"
        return ""


def unreachable_reason(name: str, port: int) -> str:
    """Return why a host does not answer, or an empty text when it does.

    A refused connection counts as an answer. So does a host name without an IP address, which proves nothing.
    """
    try:
        socket.create_connection((name, port), timeout=PROBE_S).close()
    except (ConnectionRefusedError, socket.gaierror):
        return ""
    except OSError as error:
        return str(error)
    return ""


def missing_nodes(nodes: Nodes, names: Sequence[str]) -> list[str]:
    """Return the names of the nodes of a job that have not joined the Ray cluster.

    A joined host that has another name than in Slurm counts as one of the missing nodes.
    """
    hosts = [without_domain(node["NodeManagerHostname"]) for node in nodes if node["Alive"]]
    absent = [name for name in names if without_domain(name) not in hosts]
    strangers = len(hosts) - (len(names) - len(absent))
    return absent[max(strangers, 0) :]


def cluster_fault(nodes: Nodes, num_nodes: int, num_gpus: int) -> str:
    """Return what is wrong with a Ray cluster that all nodes have joined, or an empty text.

    Each node needs an IP address of its own and `num_gpus` GPUs.
    """
    addresses = []
    too_few = []
    for node in nodes:
        if not node["Alive"]:
            continue
        addresses.append(node["NodeManagerAddress"])
        found = node["Resources"].get("GPU", 0)
        if found < num_gpus:
            too_few.append(f"{node['NodeManagerHostname']} has {found:g}")
    if len(set(addresses)) < num_nodes:
        return (
            f"{num_nodes} nodes need addresses of their own, they have {', '.join(sorted(addresses))}: set "
            "BRORL_INTERFACE to their network"
        )
    if too_few:
        return f"trainer.gpus_per_node={num_gpus}, but {', '.join(too_few)}"
    return ""


def watch() -> str:
    """Watch the Ray cluster until a node dies, and return the event that reports it."""
    while True:
        for node in ray.nodes():
            if not node["Alive"]:
                return failure_event(node)
        time.sleep(WATCH_S)


def failure_event(node: Mapping[str, Any]) -> str:
    """Return the event for a node that Ray calls dead: `lost` when its host does not answer, else `dead`."""
    name, address = without_domain(node["NodeManagerHostname"]), node["NodeManagerAddress"]
    reason = node.get("DeathReasonMessage") or "Ray says that it is dead"
    try:
        socket.create_connection((address, node["NodeManagerPort"]), timeout=PROBE_S).close()
    except ConnectionRefusedError:
        return f"dead {name} ({address}) has no Ray any more: {reason}"
    except OSError as error:
        return f"lost {name} ({address}) does not answer ({error}): {reason}"
    return f"dead {name} ({address}): {reason}"


def without_domain(name: str) -> str:
    """Return a host name without its domain."""
    return name.partition(".")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
