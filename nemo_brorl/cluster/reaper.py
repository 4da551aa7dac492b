"""A process that outlives the one that started Ray, and ends what that has started."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import psutil

from nemo_brorl.core.processes import END_S, with_descendants

# Variable of the processes of a Ray that was started here.
MARK = "BRORL_RAY"
# Variable: who writes a title for itself (setproctitle) leaves its variables readable.
KEEP_VARIABLES = "SPT_NOENV"
CLOSED = b"closed"


class Reaper:
    """A process that ends what Ray started once this one is gone, however that ended: Ray's agents would take a minute,
    and a worker that has not met its raylet yet would stay."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            # Ctrl-C is not for it.
            start_new_session=True,
        )

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Give processes that begin inside this reaper's mark, and so what they start."""
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
        """End it; what it would have ended stays."""
        # It may be stopped, by whoever stops processes of this user.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(CLOSED, timeout=END_S)
        self._process.kill()
        self._process.wait()


def reap(mark: str) -> None:
    """End the processes with that mark and all below them when standard input ends without having said `CLOSED`. They
    are stopped first, so that none starts another one while they are counted."""
    # Not its end alone: a fork of the starter may hold that open.
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
    """Find the processes of this user that began with the mark. One that has lost its variables is found below the one
    that started it, where that is still there."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


if __name__ == "__main__":
    reap(sys.argv[1])
