"""A socket of whole messages between the owner of child processes and one child.

A packet arrives whole or not at all, and the owner waits neither to send nor to receive. So a child that says half of
something, or that reads nothing, holds up nobody. A request is a file in memory, since it may be longer than a packet.
A reply is a series of packets.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from typing import Any

REQUEST = b"?"  # what accompanies the file of a request
PART = 2**16  # most bytes of a reply in one packet
MORE, LAST = b"+", b"."  # first byte of a packet


class ChildReplyError(ValueError):
    """An error for a reply of a child process that is no valid reply, for example no score."""


class Channel:
    """The owner's end of the socket to a child process, which may send anything."""

    def __init__(self, max_reply: int) -> None:
        """Open a socket to a child whose replies have at most `max_reply` bytes.

        `theirs` is the child's end, for its process. Close it here once the child has it.
        """
        self._max_reply = max_reply
        self._reply = bytearray()  # packets of the next reply so far
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor of this end, which is readable when a packet has arrived or the child ended."""
        return self._socket.fileno()

    def send(self, request: Any) -> None:
        """Send a request to the child process. Raises OSError when the child has ended or reads nothing."""
        file = os.memfd_create("request")
        try:
            with open(file, "wb", closefd=False) as writer:
                pickle.dump(request, writer, pickle.HIGHEST_PROTOCOL)
            socket.send_fds(self._socket, [REQUEST], [file])
        finally:
            os.close(file)

    def receive(self) -> bytes | None:
        """Return the next reply of the child process, or None while it is not complete.

        Raises EOFError or OSError when the child has ended, and ChildReplyError when a reply is too long.
        """
        try:
            packet = self._socket.recv(PART + 2)
        except BlockingIOError:
            return None
        if not packet:
            raise EOFError
        self._reply += packet[1:]
        if len(packet) > PART + 1 or len(self._reply) > self._max_reply:
            raise ChildReplyError(f"its reply is longer than {self._max_reply} bytes")
        if packet[:1] == MORE:
            return None
        reply = bytes(self._reply)
        self._reply.clear()
        return reply

    def close(self) -> None:
        """Close the owner's end of the socket to a child process."""
        self._socket.close()


def receive_request(end: socket.socket) -> Any:
    """Wait in a child process for the owner's next request, and return it. Raises EOFError when the owner has ended."""
    files: list[int] = []
    with contextlib.suppress(ConnectionResetError):
        _, files, _, _ = socket.recv_fds(end, len(REQUEST), 1)
    if not files:
        raise EOFError
    with open(files[0], "rb") as reader:
        reader.seek(0)
        return pickle.load(reader)


def send_reply(end: socket.socket, reply: bytes) -> None:
    """Send a reply from a child process to its owner."""
    last = max(len(reply) - 1, 0) // PART
    for number in range(last + 1):
        part = reply[number * PART : (number + 1) * PART]
        end.send((LAST if number == last else MORE) + part)
