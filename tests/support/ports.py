"""A port for a server that another process or thread will open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def reserved_port(num_after: int = 0) -> Iterator[int]:
    """Keep a free port of 127.0.0.1, and so many after it, from everybody but servers that are told the numbers.

    A port is bound, so the system gives it to nobody who asks for any port. It is not listened on, so Linux lets a
    server with SO_REUSEADDR, which servers set, bind and listen on it.
    """
    with ExitStack() as stack:
        first = _hold(stack, 1 + num_after)
        while first is None:
            stack.close()
            first = _hold(stack, 1 + num_after)
        yield first


def _hold(stack: ExitStack, num: int) -> int | None:
    """Bind so many ports in a row; return the first, or None where one of them is taken."""
    first = _bind(stack, 0)
    try:
        for after in range(1, num):
            _bind(stack, first + after)
    except (OSError, OverflowError):  # taken, or above the last port
        return None
    return first


def _bind(stack: ExitStack, port: int) -> int:
    held = stack.enter_context(socket.socket())
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return int(held.getsockname()[1])
