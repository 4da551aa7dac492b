"""The door: a `Sandbox` runs programs one after another in a warden of its own, and brings it back when it is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.tasks.sandbox.bubblewrap import wrapped
from nemo_brorl.tasks.sandbox.confine import NO_USERS, readable_paths
from nemo_brorl.tasks.sandbox.limits import LOST, MIB, Layers, Limits

log = get_logger(__name__)

SOURCE = str(Path(__file__).resolve().parents[3])
START_LIMIT_S = 60.0
GRACE_S = 15.0  # the warden ends late runs itself; this much later it is believed lost
# Imported before the first run, so that programs get them for nothing.
USEFUL = [
    "bisect",
    "cmath",
    "collections",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "itertools",
]
USEFUL += [
    "json",
    "math",
    "operator",
    "queue",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "threading",
    "time",
    "typing",
]


@dataclass(frozen=True)
class Job:
    """One run; `harness.py` says what the kinds mean."""

    source: str
    kind: str = "main"  # or call, script
    stdin: str = ""
    name: str = ""  # of the function to call
    parts: Sequence[Any] = ()  # arguments, or sources


@dataclass(frozen=True)
class Run:
    """What became of a job. All of it is the program's word."""

    ending: str  # FINISHED, … of limits.py
    seconds: float
    printed: str
    reports: list[list[Any]]  # [what, value still encoded, index]


class Sandbox:
    """A warden that is alive from the constructor to `close`, or to the end of the process that made it.

    `without` names layers (fields of `Layers`) to do without, for kernels that have a bad one and for tests. Raises
    ResourceError when a program could do what it must not, with the list of it, unless `is_bare_allowed`; and when the
    warden does not start.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        readable: Sequence[str] = (),
        preload: Sequence[str] = (),
        without: Sequence[str] = (),
        is_bare_allowed: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.readable, self.preload, self.without = tuple(readable), tuple(preload), tuple(without)
        self.num_lost = 0
        self._start()
        log.info("%s", self.layers)
        if gaps := self.layers.gaps():
            message = f"programs could {'; '.join(gaps)}"
            if not is_bare_allowed:
                self.close()
                raise ResourceError(
                    f"there is no sandbox on this machine: {message}. docs/sandbox.md says how to get one."
                )
            log.warning("running without a sandbox, as rewards.code.allow_unsandboxed tells: %s", message)

    def run(self, job: Job, seconds: float | None = None) -> Run:
        """Run a job: each part within the limits, all of it within `seconds`. A lost warden is replaced, and the run
        counts as LOST."""
        parts = list(job.parts)
        total = seconds or self.limits.seconds * (1 + len(parts))
        times = {"part_seconds": min(self.limits.seconds, total), "seconds": total}
        message = asdict(job) | times | {"parts": parts, "output_bytes": self.limits.output_kib * 1024}
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            if not self._connection.poll(total + GRACE_S):
                raise EOFError("late")
            head = json.loads(self._connection.recv_bytes())
            printed, reported = self._connection.recv_bytes(), self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            self.num_lost += 1
            log.warning("a sandbox was lost with its program (%s); a new one takes its place", error)
            self.close()
            self._start()
            return Run(LOST, total, "", [])
        return Run(head["ending"], head["seconds"], printed.decode(errors="replace"), _parsed(reported))

    @property
    def process_id(self) -> int:
        """Of the process that all others of the sandbox descend from."""
        return self._process.pid

    def close(self) -> None:
        """End the warden and everything in it."""
        self._process.kill()  # and the kernel takes along process 1 of the pid namespace, and with it all others
        self._process.wait()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, without: Sequence[str] = ()) -> None:
        without = (*self.without, *without)
        self.layers = self._start_once(without)
        if (self.layers.mount and self.layers.pid) or "bubblewrap" in without or shutil.which("bwrap") is None:
            return
        bare = self.layers
        self.close()
        try:
            self.layers = self._start_once(without, is_wrapped=True)
        except ResourceError:
            log.warning("bubblewrap does not work on this machine; going on with %s", bare)
            self.layers = self._start_once(without)

    def _start_once(self, without: Sequence[str], is_wrapped: bool = False) -> Layers:
        self._folder = tempfile.mkdtemp(prefix="brorl-sandbox-")
        scratch, root = os.path.join(self._folder, "scratch"), os.path.join(self._folder, "root")
        os.mkdir(scratch)
        os.mkdir(root)
        os.chmod(self._folder, 0o711)  # programs of another user reach the scratch folder, by its name alone
        self._connection, theirs = Pipe()
        readable = readable_paths(self.readable)
        settings = {
            "folder": root,
            "scratch": scratch,
            "readable": readable,
            "preload": [*USEFUL, *self.preload],
            "source": SOURCE,
            "without": list(without),
            "limits": asdict(self.limits),
            "bubblewrap": is_wrapped,
            "is_root": os.getuid() == 0,
        }
        command = [
            sys.executable,
            "-s",
            "-P",
            "-m",
            "nemo_brorl.tasks.sandbox.fork_server",
            str(theirs.fileno()),
            json.dumps(settings),
        ]
        if is_wrapped:
            command = wrapped(command, [*readable, str(Path(SOURCE) / "nemo_brorl")], self.limits.scratch_mib * MIB)
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
        )
        theirs.close()
        try:
            if not self._connection.poll(START_LIMIT_S):
                raise ResourceError(f"the sandbox did not start within {START_LIMIT_S:.0f} s")
            layers = Layers(**json.loads(self._connection.recv_bytes()))
        except EOFError as error:
            code = self._process.wait()
            self.close()
            if code == NO_USERS and "user" not in without:
                return self._start_once((*without, "user"))
            raise ResourceError(f"the sandbox did not start (exit code {code}); see the log") from error
        if layers.mount:
            shutil.rmtree(
                self._folder
            )  # its root is elsewhere by now, and so a kill -9 of this process leaves nothing behind
        return layers


def _environment() -> dict[str, str]:
    """Of the warden and the programs: nothing of ours is in it."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": SOURCE,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _parsed(reported: bytes) -> list[list[Any]]:
    """The reports that are well formed, up to the first that is not."""
    found: list[list[Any]] = []
    for line in reported.split(b"\n"):
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            return found
        if (
            not isinstance(report, list)
            or len(report) != 3
            or not isinstance(report[0], str)
            or type(report[2]) is not int
        ):
            return found
        found.append(report)
    return found
