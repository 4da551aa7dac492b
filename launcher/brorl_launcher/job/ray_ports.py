"""Choose the ports of Ray on a node of a job, and find the address at which other nodes reach it.

The ports are fixed, below those that the system gives to outgoing connections, and must be free. A node has several
addresses, and its own name often resolves to 127.0.1.1 in its /etc/hosts.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

NUM_PORTS = 1000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
SIOCGIFADDR = 0x8915  # <linux/sockios.h>
ANY_PORT = 9  # any port will do, because nothing is sent


@dataclass(frozen=True)
class RayPorts:
    """The port `base` and the 999 after it, the same on all nodes.

    First come the head's and the node's services, then one port for every process that Ray starts.
    """

    base: int

    def services(self, is_head: bool) -> dict[str, int]:
        """Return the ports of Ray's services, by the option of `ray start` that sets them."""
        names = ["node-manager-port", "object-manager-port", "runtime-env-agent-port", "dashboard-agent-grpc-port"]
        names += ["dashboard-agent-listen-port", "metrics-export-port"]
        head = (
            {"port": self.base, "ray-client-server-port": self.base + 1, "dashboard-port": self.base + 2}
            if is_head
            else {}
        )
        return head | {name: self.base + 10 + number for number, name in enumerate(names)}

    def options(self) -> list[str]:
        """Return the port options of `ray start` that every node gets."""
        own = [f"--{name}={port}" for name, port in self.services(is_head=False).items()]
        return [*own, f"--min-worker-port={self.base + 100}", f"--max-worker-port={self.base + NUM_PORTS - 1}"]

    def head_options(self) -> list[str]:
        """Return the port options of `ray start` that only the head node gets."""
        return [
            f"--{name}={port}"
            for name, port in self.services(is_head=True).items()
            if name not in self.services(is_head=False)
        ]


def check_ports(ports: RayPorts, is_head: bool) -> None:
    """Raise OSError when one of Ray's ports on this node is taken or the port range is not usable.

    The message names the port, or says what is wrong with the range.
    """
    lowest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 1 << 16
    last = ports.base + NUM_PORTS - 1
    if ports.base < 1024 or last >= lowest:
        raise OSError(
            f"ports {ports.base} to {last} are not between 1024 and {lowest}, where those of the system begin: set "
            "BRORL_PORT_BASE"
        )
    for name, port in ports.services(is_head).items():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # a port of an ended process counts as free, as for servers
            try:
                probe.bind(("", port))
                probe.listen()
            except OSError as error:
                whose = "is another job's Ray on this node? " if error.errno == errno.EADDRINUSE else ""
                raise OSError(
                    f"port {port} (Ray's {name}) cannot be used ({error.strerror}): {whose}set BRORL_PORT_BASE"
                ) from error


def own_address(peer: str) -> str:
    """Return the IP address that this node uses towards another host. Raises OSError when there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, ANY_PORT))
        return str(probe.getsockname()[0])


def address_of(node: str) -> str:
    """Return the IP address of another node by its name. Raises OSError when the name has no address here."""
    try:
        return socket.gethostbyname(node)
    except OSError as error:
        raise OSError(
            f"the name of node {node} has no address here ({error}): set BRORL_INTERFACE to the network of the nodes"
        ) from error


def interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface.

    Raises OSError, which lists the interfaces of this node, when this one has no address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            names = ", ".join(known for _, known in socket.if_nameindex())
            raise OSError(
                f"BRORL_INTERFACE={name} has no address on this node ({error.strerror}): there are {names}"
            ) from error
    return socket.inet_ntoa(answer[20:24])
