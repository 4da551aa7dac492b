"""The trial program: it tries what programs must not do, and prints the names of what it could do (`limits.GAPS`).

It runs in a sandbox when that starts, reads the targets of its attempts from standard input, and imports nothing of
this package.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER = 0x10000000  # flag CLONE_NEWUSER of `unshare`
GET_NO_NEW_PRIVS = 39  # option PR_GET_NO_NEW_PRIVS of `prctl`
ATTACH = 16  # request PTRACE_ATTACH of `ptrace`


def succeeds(attempt: Callable[[], object]) -> bool:
    """Return whether the kernel allows an attempt at something that programs must not do."""
    try:
        attempt()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def raise_if_refused(result: int) -> None:
    """Raise OSError for a negative result of a C function."""
    if result < 0:
        raise OSError(ctypes.get_errno())


def open_file(path: str, mode: str) -> None:
    """Open a file in this mode, to find out whether the sandbox allows it."""
    with open(path, mode, encoding="utf-8"):
        return


def connect(family: int, address: object) -> None:
    """Connect to a listening socket, to find out whether the sandbox allows it."""
    with socket.socket(family) as client:
        client.settimeout(1)
        client.connect(address)  # type: ignore[arg-type]


def send_datagram() -> None:
    """Send a UDP datagram to the loopback interface, to find out whether the sandbox allows it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("127.0.0.1", 9))


def signal_by_pipe(pid: int) -> None:
    """Have the kernel send SIGKILL to a process when a pipe becomes readable."""
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
    fcntl.fcntl(reader, 10, signal.SIGKILL)  # 10 is F_SETSIG
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")


def start_processes(most: int) -> int:
    """Start up to `most` processes and return how many could be started."""
    reader, writer = os.pipe()
    for number in range(most):
        try:
            pid = os.fork()
        except OSError:
            return number
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # waits until its parent exits
            os._exit(0)
    return most


def main() -> None:
    """Attempt everything that sandboxed programs must not do, and print which attempts succeed.

    The attempts that may kill this process come last.
    """
    targets = json.load(sys.stdin)
    file = targets["file"]
    process = targets["process"]
    most = targets["processes"]
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("files", lambda: open_file(file, "r")),
        ("files", lambda: open_file(file, "a")),
        ("attributes", lambda: os.chmod(file, 0o600)),
        ("attributes", lambda: os.utime(file, (1, 1))),
        ("network", lambda: connect(socket.AF_INET, ("127.0.0.1", targets["port"]))),
        ("network", lambda: connect(socket.AF_UNIX, targets["socket"])),
        ("network", send_datagram),
        ("memory", lambda: os.memfd_create("x")),
        ("memory", lambda: raise_if_refused(LIBC.unshare(NEW_USER))),
        ("processes", lambda: raise_if_refused(start_processes(most + 1) - most - 1)),
        ("rights", lambda: raise_if_refused(-LIBC.prctl(GET_NO_NEW_PRIVS, 0, 0, 0, 0))),
    ]
    is_own = process == os.getpid()  # in a pid namespace that id may be this process's
    if not is_own:
        attempts.append(("look", lambda: raise_if_refused(LIBC.ptrace(ATTACH, process, 0, 0))))
    allowed = {name for name, attempt in attempts if succeeds(attempt)}
    sys.stdout.write(json.dumps(sorted(allowed)))
    sys.stdout.flush()
    if is_own:
        return
    succeeds(lambda: signal_by_pipe(process))
    succeeds(lambda: LIBC.sigqueue(process, signal.SIGKILL, None))
    succeeds(lambda: os.kill(process, signal.SIGKILL))


if __name__ == "__main__":
    main()
