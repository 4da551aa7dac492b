"""Processes that Ray is made of: which there are, whether one is lost, and how all of them are ended, also by a process
that outlives the one that started Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import psutil

from nemo_brorl.core.errors import LOST

ESSENTIAL = ("gcs_server", "raylet")  # without one of them nothing that Ray started can be reached
LOOK_S = 1.0
# After which a start that has lost a process is ended: Ray says so in less, and can be tried again, or ends this
# process without a word after 60 s.
PATIENCE_S = 45.0
# After which one that has lost none is ended: a raylet that stood still meanwhile may leave this process waiting for an
# answer that never comes.
START_S = 150.0
END_S = 10.0  # that processes have to end by themselves


class RayWatch:
    """A thread that calls `on_loss` with the name of the first process that is gone."""

    def __init__(self, processes: Sequence[psutil.Process], on_loss: Callable[[str], None]) -> None:
        self._names = {process: name_of(process) for process in processes}
        self._on_loss = on_loss
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking: from now on processes may end."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> str | None:
        """Name of a process that has ended; None when all are there."""
        for process, name in self._names.items():
            if not is_running(process):
                return name
        return None

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            lost = self.look()
            if lost is not None:
                self._on_loss(lost)
                return


@contextlib.contextmanager
def watched_start(
    before: Collection[psutil.Process],
    on_loss: Callable[[str], None],
    on_late: Callable[[], None],
) -> Iterator[None]:
    """Around Ray's start: `on_loss` is called with the name of an essential process that came and went, when the start
    has not ended `PATIENCE_S` later, `on_late` when it has not ended after `START_S`. `before`: processes that are not
    Ray's."""
    ended = threading.Event()
    watch = (before, on_loss, on_late, ended)
    thread = threading.Thread(target=_look_at_start, args=watch, name="ray start watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _look_at_start(
    before: Collection[psutil.Process],
    on_loss: Callable[[str], None],
    on_late: Callable[[], None],
    ended: threading.Event,
) -> None:
    names: dict[psutil.Process, str] = {}
    ends_at = time.monotonic() + START_S
    while not ended.wait(LOOK_S):
        for process in children_but(before):
            name = name_of(process)
            if name in ESSENTIAL:
                names[process] = name
        lost = [name for process, name in names.items() if not is_running(process)]
        if lost:
            if not ended.wait(PATIENCE_S):
                on_loss(lost[0])
            return
        if time.monotonic() > ends_at:
            on_late()
            return


@contextlib.contextmanager
def start_limit(seconds: float) -> Iterator[None]:
    """Around the start of all that a command works with: where it has not ended in time the process does, with a
    message and `LOST`, whatever it waits for; what Ray has started is ended after it."""
    timer = threading.Timer(seconds, _end_late_start, (seconds,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_late_start(seconds: float) -> None:
    sys.stderr.write(
        f"\nerror: Ray, engines, policy and verifiers were not ready after trainer.start_timeout_s={seconds:g} s: "
        "raise it where the model is large or the disk slow; otherwise the same command may succeed\n"
    )
    sys.stderr.flush()
    os._exit(LOST)


def children_but(before: Collection[psutil.Process]) -> list[psutil.Process]:
    """Processes below this one that are not among `before`."""
    return [child for child in psutil.Process().children(recursive=True) if child not in before]


def with_descendants(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that are still there, and all processes below them."""
    found = set(processes)
    for process in processes:
        try:
            found.update(process.children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    return list(found)


def name_of(process: psutil.Process) -> str:
    """Name of a process; empty when it is gone."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def is_running(process: psutil.Process) -> bool:
    """Whether a process is there and not just waiting to be reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_processes(processes: Sequence[psutil.Process], wait_s: float) -> int:
    """Wait until these have ended, and kill those that have not within `wait_s` seconds: their number."""
    _, left = psutil.wait_procs(processes, timeout=wait_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=END_S)
    return len(left)


MARK = "BRORL_RAY"  # variable of the processes of a Ray that was started here
KEEP_VARIABLES = "SPT_NOENV"  # variable: who writes a title for itself (setproctitle) leaves its variables readable
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
            start_new_session=True,  # Ctrl-C is not for it
        )

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Processes that begin inside are this reaper's, and so is what they start."""
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
        with contextlib.suppress(subprocess.TimeoutExpired):  # somebody stopped it
            self._process.communicate(CLOSED, timeout=END_S)
        self._process.kill()
        self._process.wait()


def reap(mark: str) -> None:
    """End the processes with that mark and all below them when standard input ends without having said `CLOSED`. They
    are stopped first, so that none starts another one while they are counted."""
    if os.read(sys.stdin.fileno(), len(CLOSED)) == CLOSED:  # its end may be held open by somebody's fork
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
    """Processes of this user that began with the mark. One that has lost its variables is found below the one that
    started it, where that is still there."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


if __name__ == "__main__":
    reap(sys.argv[1])
