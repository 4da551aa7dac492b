"""Address that other nodes reach this one by. A node has several, and its own name often stands for 127.0.1.1 in its
/etc/hosts."""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915  # <linux/sockios.h>
ANY_PORT = 9  # nothing is sent


def own_address(peer: str) -> str:
    """The address that this node has on the way to a peer. Raises OSError where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, ANY_PORT))
        return str(probe.getsockname()[0])


def address_of(node: str) -> str:
    """Of another node, by its name. Raises OSError."""
    try:
        return socket.gethostbyname(node)
    except OSError as error:
        raise OSError(
            f"the name of node {node} has no address here ({error}): set BRORL_INTERFACE to the network of the nodes"
        ) from error


def interface_address(name: str) -> str:
    """Of a network interface. Raises OSError that names those there are."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            names = ", ".join(known for _, known in socket.if_nameindex())
            raise OSError(
                f"BRORL_INTERFACE={name} has no address on this node ({error.strerror}): there are {names}"
            ) from error
    return socket.inet_ntoa(answer[20:24])
