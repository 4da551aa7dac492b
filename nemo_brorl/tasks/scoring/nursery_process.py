"""The crew's end of a nursery: starts it when it is needed, and speaks with it."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from typing import Any

from nemo_brorl.core.errors import BroRLError, ConfigError, ResourceError
from nemo_brorl.tasks.scoring.nursery import READY

START_LIMIT_S = 120.0  # it imports libraries, which is not the fault of a response


class NurseryProcess:
    """One nursery at a time. Not thread-safe; Linux ends the nursery with the thread that called `load`."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Connection | None = None

    def load(self, verifier: str) -> BroRLError | None:
        """Import a verifier and its libraries; why it cannot be. Raises ResourceError when the nursery is gone or does
        not start."""
        message = self._ask("load", verifier)
        if message is not None:
            return ConfigError(message)
        self.loaded.add(verifier)
        return None

    def fork(self, descriptor: int) -> int:
        """Process id of a new child that serves the descriptor. Raises ResourceError."""
        return int(self._ask("fork", None, descriptor))

    def end(self, process: int) -> None:
        """Kill a child, and all in its process group, and wait until it is gone. Raises ResourceError."""
        self._ask("end", process)

    def close(self) -> None:
        """Kill the nursery; its children go with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process, self._control = None, None
        self.loaded.clear()

    def _ask(self, request: str, argument: Any, descriptor: int | None = None) -> Any:
        if self._control is None:
            self._start()
        assert self._control is not None and self._process is not None, "it has just been started"
        try:
            self._control.send((request, argument))
            if descriptor is not None:
                send_handle(self._control, descriptor, self._process.pid)
            return self._answer(self._control)
        except (EOFError, OSError) as error:
            raise ResourceError(
                f"the verifier process ended while it served {request} {argument}: {self._exit()}"
            ) from error

    def _start(self) -> None:
        self._control, theirs = Pipe()  # a socket pair: only the nursery's end is inherited
        command = [sys.executable, "-m", "nemo_brorl.tasks.scoring.nursery", str(theirs.fileno())]
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )  # a process with threads cannot be forked
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **threads}
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        try:
            assert self._answer(self._control) == READY, "the first word of a nursery"
        except EOFError as error:
            raise ResourceError(f"the verifier process did not start: {self._exit()}") from error

    def _answer(self, control: Connection) -> Any:
        if not control.poll(START_LIMIT_S):
            raise ResourceError(
                f"the verifier process did not answer within {START_LIMIT_S:.0f} s; is the machine out of memory?"
            )
        return control.recv()

    def _exit(self) -> str:
        """How the nursery ended."""
        assert self._process is not None, "asked about a nursery that was started"
        return f"exit code {self._process.wait()}; see the log"
