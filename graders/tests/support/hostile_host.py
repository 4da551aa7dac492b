"""Targets of hostile programs: a secret, files, processes and sockets of this machine that show who touched them."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

CORPUS = Path(__file__).with_name("hostile_programs.txt")


def hostile_programs() -> dict[str, str]:
    """Return the sources of hostile programs by `kind: name`, with words in capitals that `fill_in` replaces."""
    blocks = re.split(r"^=== (.+)\n", CORPUS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(blocks[::2], blocks[1::2], strict=True))


class Host:
    """A context manager with the targets, which exist from `with` to its end."""

    def __init__(self, folder: Path, scratch_bytes: int) -> None:
        self.folder, self.scratch_bytes = folder, scratch_bytes
        self.answer = secrets.randbelow(10**12)
        self.stack = ExitStack()

    def __enter__(self) -> Host:
        self.secret, self.outside = self.folder / "secret.txt", self.folder / "outside"
        self.outside.mkdir(mode=0o777)
        self.outside.chmod(0o777)
        for file in (self.secret, self.outside / "file.txt"):
            file.write_text("CANARY", encoding="utf-8")
            file.chmod(0o666)
        waiting = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # for as long as we live
        self.process = self.stack.enter_context(waiting)
        self.stack.callback(self.process.kill)
        self.abstract = f"brorl-{secrets.token_hex(8)}"
        self.listeners = [self._listener(socket.AF_INET, ("127.0.0.1", 0))]
        port = self.listeners[0].getsockname()[1]
        for address in ("\0" + self.abstract, str(self.folder / "socket")):
            self.listeners.append(self._listener(socket.AF_UNIX, address))
        if Path("/proc/net/if_inet6").exists():
            self.listeners.append(self._listener(socket.AF_INET6, ("::1", port)))
        self.datagrams = self.stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.datagrams.bind(("127.0.0.1", port))
        self.datagrams.setblocking(False)
        self.words = {
            "SECRET_FILE": str(self.secret),
            "OUTSIDE": str(self.outside),
            "HOST_PID": str(self.process.pid),
            "PORT": str(port),
            "ABSTRACT": self.abstract,
            "SOCKET_FILE": str(self.folder / "socket"),
            "ANSWER_HASH": hashlib.sha256(str(self.answer).encode()).hexdigest(),
            "SCRATCH_BYTES": str(self.scratch_bytes),
        }
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def fill_in(self, source: str) -> str:
        """Return a program with this host's targets in place of the words in capitals."""
        return re.sub("|".join(self.words), lambda word: self.words[word[0]], source)

    def touched(self) -> list[str]:
        """Return the targets that are not in their first state."""
        found = [
            str(file)
            for file in (self.secret, self.outside / "file.txt")
            if file.read_text(encoding="utf-8") != "CANARY"
        ]
        found += [str(path) for path in self.outside.iterdir() if path.name != "file.txt"]
        found += [] if self.process.poll() is None else ["a process"]
        for listener in [*self.listeners, self.datagrams]:
            try:
                found.append(str(listener.recv(1) if listener is self.datagrams else listener.accept()))
            except BlockingIOError:
                continue
        return found

    def _listener(self, family: int, address: object) -> socket.socket:
        listener = self.stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()
        listener.setblocking(False)
        return listener


def descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        for parent in _parents(name):
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(pid, []))
    for one in found:
        found.extend(children.get(one, []))
    return found


def kill_with_descendants(pid: int) -> None:
    """Kill a process with SIGKILL and wait until its descendants have exited too."""
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    while any(os.path.exists(f"/proc/{process}") for process in below):
        time.sleep(0.01)


def _parents(name: str) -> Iterator[int]:
    try:
        yield int(
            Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    except OSError:
        return
