"""Watch the processes that Ray consists of, while it starts and while it runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import psutil

from nemo_brorl.core.console import write_error
from nemo_brorl.core.errors import LOST
from nemo_brorl.core.processes import children_but, is_running, name_of

# Processes without which nothing that Ray started can be reached.
ESSENTIAL = ("gcs_server", "raylet")
LOOK_S = 1.0
# Seconds after which a start that has lost a process is ended. Ray reports some losses sooner, so that the start can be
# tried again. After 60 s it would end this process without a message.
PATIENCE_S = 45.0
# Seconds after which a start that has lost no process is ended. A raylet that was paused may leave this process waiting
# for an answer that never comes.
START_S = 150.0


class RayWatch:
    """A thread that calls `on_loss` with the name of the first watched process that has ended."""

    def __init__(self, processes: Sequence[psutil.Process], on_loss: Callable[[str], None]) -> None:
        self._names = {process: name_of(process) for process in processes}
        self._on_loss = on_loss
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray watch", daemon=True)

    def start(self) -> None:
        """Start the thread that watches whether Ray's processes are alive."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread that watches Ray's processes, so that they may end without a report."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> str | None:
        """Return the name of a watched Ray process that has ended, or None while all run."""
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
    """Watch Ray's start, which happens inside this context.

    `on_loss` is called with the name of an essential Ray process that started and ended, if Ray's start is still
    running `PATIENCE_S` seconds later. `on_late` is called if Ray's start takes longer than `START_S` seconds. `before`
    are the processes that existed before Ray.
    """
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
    """End this process with exit code `LOST` if the code inside this context takes longer than `seconds`.

    The context is around the start of Ray, engines, policy and verifiers. A message is printed, and processes that Ray
    has started are ended too.
    """
    timer = threading.Timer(seconds, _end_late_start, (seconds,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_late_start(seconds: float) -> None:
    write_error(
        f"\nerror: Ray, engines, policy and verifiers were not ready after trainer.start_timeout_s={seconds:g} s: "
        "raise it where the model is large or the disk slow; otherwise the same command may succeed\n"
    )
    os._exit(LOST)
