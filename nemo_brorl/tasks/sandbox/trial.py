"""Trial of a sandbox when it starts: a program tries what programs must not do."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

PROGRAM = Path(__file__).with_name("trial_program.py")
LIMIT_S = 30.0


def layers_reached(run: Callable[[str, str], str], processes: int) -> tuple[str, ...]:
    """Names in `limits.GAPS`. `run` has a program read a text, and returns what it prints; `processes` is how many it
    may have. Raises ValueError when it prints nothing of the kind."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="brorl-trial-"))
        os.chmod(folder, 0o777)
        file = os.path.join(folder, "file")
        Path(file).touch()
        os.chmod(file, 0o666)
        victim = stack.enter_context(subprocess.Popen(["sleep", "60"]))
        stack.callback(victim.kill)
        abstract = f"\0brorl-{secrets.token_hex(8)}"
        stack.enter_context(_listener(socket.AF_UNIX, abstract))
        listener = stack.enter_context(_listener(socket.AF_INET, ("127.0.0.1", 0)))
        targets = {
            "file": file,
            "process": victim.pid,
            "processes": processes,
            "port": listener.getsockname()[1],
            "socket": abstract,
        }
        source = PROGRAM.read_text(encoding="utf-8")
        found = set(json.loads(run(source, json.dumps(targets))))
        if victim.poll() is not None:
            found.add("signals")
        return tuple(sorted(found))


def _listener(family: int, address: str | tuple[str, int]) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    return listener
