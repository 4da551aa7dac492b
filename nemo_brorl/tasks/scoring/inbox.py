"""Inbox of the one thread that works with child processes, filled by any other."""

from __future__ import annotations

import threading
from collections import deque
from multiprocessing.connection import Connection, Pipe
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """What has arrived, and a connection that is ready when the thread should look."""

    def __init__(self) -> None:
        self.arrived: deque[Item] = deque()
        self._lock = threading.Lock()
        self._receiver, self._sender = Pipe(duplex=False)

    @property
    def bell(self) -> Connection:
        """Connection to wait for."""
        return self._receiver

    def put(self, item: Item) -> None:
        """Leave something for the thread, and wake it."""
        self.arrived.append(item)
        self.ring()

    def ring(self) -> None:
        """Wake the thread."""
        with self._lock:
            self._sender.send_bytes(b"!")

    def heard(self) -> None:
        """Silence the bell, by the thread, once for each time that it was ready."""
        self._receiver.recv_bytes()
