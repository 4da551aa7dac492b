"""Commands as users call them, in children of a process that has imported Ray and NeMo: seconds less than `python -m
nemo_brorl` for each."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from nemo_brorl.__main__ import main
from tests.support import fork_server, forked_workers

fork_server.preload("nemo_brorl.commands.wiring", "nemo_brorl.commands.evaluate", "nemo_brorl.commands.nemo_app")

TIMEOUT_S = 400.0
FOLDER_PREFIX = "brorl_command_"  # of a folder with what a command has printed


class Command:
    """`brorl ARGUMENTS`, running, with these variables in its environment.

    It starts in a fresh interpreter where one of them names a library that is loaded before a program.
    """

    def __init__(self, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX)  # removed with this object
        self._folder = Path(self._scratch.name)
        for name in ("output", "errors"):
            (self._folder / name).touch()
        workers = forked_workers.use_forked_workers()
        self._process = fork_server.start(_enter, arguments, self._folder, workers, variables)

    @property
    def output(self) -> str:
        """What it has written to its standard output so far."""
        return (self._folder / "output").read_text()

    @property
    def errors(self) -> str:
        """What it has written to its standard error so far."""
        return (self._folder / "errors").read_text()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """The exit code, as `subprocess` counts them: -9 after SIGKILL."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        assert code is not None, f"has not ended within {timeout_s:g} s: {self.errors[-2000:]}"
        return code

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 240.0) -> None:
        """Until the condition holds, which is to be while the command runs."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.is_alive(), f"ended early with {self._process.exitcode}: {self.errors[-2000:]}"
            assert time.monotonic() < deadline, f"waited {timeout_s:g} s"
            time.sleep(0.02)

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.is_alive()

    def processes(self) -> list[psutil.Process]:
        """All that it has started and that is still there."""
        try:
            started = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:  # it has ended meanwhile
            started = []
        return forked_workers.with_forked(started)

    def kill(self) -> None:
        """End it as the kernel would; nothing that it started outlives it."""
        started = self.processes()
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL
        _, alive = psutil.wait_procs(started, timeout=30)
        assert alive == []


def run(*arguments: str) -> Command:
    """A command that has ended well."""
    command = Command(*arguments)
    assert command.wait() == 0, command.output[-2000:] + command.errors[-4000:]
    return command


def _enter(
    arguments: tuple[str, ...],
    folder: Path,
    workers: str | None,
    variables: Mapping[str, str] | None,
) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name, number in (("output", 1), ("errors", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(variables or {})
    for path in reversed((variables or {}).get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    if variables and "LD_PRELOAD" in variables:
        program = [sys.executable, "-m", "nemo_brorl", *arguments]
        os.execve(sys.executable, program, os.environ)
    forked_workers.enter_command(workers)
    sys.argv = ["brorl", *arguments]
    sys.exit(main())
