"""Run a process that outlives the one that started Ray, and ends what Ray started."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import psutil

from nemo_brorl.core.processes import END_S, with_descendants

# Environment variable that marks the processes of a Ray that was started here.
MARK = "BRORL_RAY"
# Environment variable that keeps a process's variables readable when it changes its title with setproctitle.
KEEP_VARIABLES = "SPT_NOENV"
CLOSED = b"closed"


class Reaper:
    """A process that ends everything that Ray started once its parent has ended, for whatever reason.

    Ray's own agents would take a minute, and a worker that has not met its raylet yet would stay.
    """

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            # Ctrl-C must not reach the reaper.
            start_new_session=True,
        )

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Mark processes that start inside this context, and their descendants, with an environment variable.

        The reaper, a process of its own, kills all marked processes when the process that started it ends.
        """
        before = os.environ.get(KEEP_VARIABLES)
        os.environ[MARK] = self._mark
        os.environ[KEEP_VARIABLES] = "1"
        try:
            yield
        finally:
            del os.environ[MARK]
            del os.environ[KEEP_VARIABLES]
            if before is not None:
                os.environ[KEEP_VARIABLES] = before

    def close(self) -> None:
        """End the reaper, which kills leftover processes of a run, without killing any of them."""
        # Another program may have stopped the reaper with a signal, and then it never answers.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(CLOSED, timeout=END_S)
        self._process.kill()
        self._process.wait()


def reap(mark: str) -> None:
    """Wait for the end of standard input, then kill all processes of a run that carry this mark in their environment.

    Their descendants are killed too. All of these processes are stopped first, so that none starts a new process
    meanwhile. If `CLOSED` arrives on standard input instead, nothing is killed.
    """
    # The end of the input alone would not do as a sign of closing: a fork of the parent may hold the pipe open.
    if os.read(sys.stdin.fileno(), len(CLOSED)) == CLOSED:
        return
    stopped: set[psutil.Process] = set()
    while new := set(with_descendants(marked_processes(mark))) - stopped:
        for process in new:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        stopped |= new
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.kill()


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return this user's processes that were started with the reaper's mark in their environment.

    A process that has cleared its environment is not among them. The reaper still finds it as a descendant of a marked
    process, as long as its parent runs.
    """
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                processes.append(process)
    return processes


if __name__ == "__main__":
    reap(sys.argv[1])
