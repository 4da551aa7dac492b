"""Show the stages of a command with their seconds, while they run. A signal ends a start."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Self

from nemo_brorl.core.clock import STOP_SIGNALS, StartCut, Stopwatch
from nemo_brorl.core.console import Console, screen_width, write_error

DRAW_S = 0.2  # seconds between two drawings on a terminal
LEAST_S = 0.5  # seconds of a stage that is shown after it
SAY_S = 8.0  # seconds between two lines about a stage in a file
CLOSING_S = 5.0  # seconds from a signal until a start that cannot be closed in order is ended by force
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

OnStage = Callable[[str, float | None], None]  # gets a stage's name; None at its begin, and its seconds at its end


class StageReport(Stopwatch):
    """A stopwatch for the stages of a command, which shows them: one live line on a terminal, or lines in a file.

    A context manager. A thread redraws the line, because the main thread is busy or waits for other processes.
    """

    def __init__(self, console: Console, on_stage: OnStage | None = None) -> None:
        super().__init__()
        self.console = console
        self.on_stage = on_stage or (lambda name, seconds: None)
        self._running: tuple[str, float] | None = None  # name of the stage, and when it began (time.monotonic())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="stage report", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the report: the stages are over. May be called again."""
        self._closed.set()
        self._thread.join()
        self.console.clear()

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Show stage `name` of the command while the context runs, and add its seconds."""
        outer = self._running
        self._running = (name, time.monotonic())
        if not self.console.draws_progress:
            self.console.note(f"  {name} …")
        self.on_stage(name, None)
        try:
            with super().measure(name):
                yield
        finally:
            self._running = outer
        self.on_stage(name, self.seconds[name])

    def text(self, now: float) -> str:
        """Return the stages so far that took half a second or more as one line. `now`: time.monotonic()."""
        parts = [f"✓ {name} {seconds:.0f} s" for name, seconds in list(self.seconds.items()) if seconds >= LEAST_S]
        running = self._running
        if running is not None:
            name, began_at = running
            parts.append(f"{SPINNER[int(now / DRAW_S) % len(SPINNER)]} {name} {now - began_at:.0f} s")
        # The end is what runs now, so the beginning is left out on a narrow screen.
        line = "   ".join(parts)
        room = screen_width() - 4
        return f"  {line}" if len(line) <= room else f" …{line[-room:]}"

    def summary(self) -> str:
        """Return the stages that took half a second or more, for the line at the end."""
        return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items() if seconds >= LEAST_S)

    def _tell(self) -> None:
        said_at = time.monotonic()
        while not self._closed.wait(DRAW_S):
            now = time.monotonic()
            running = self._running
            if self.console.draws_progress:
                self.console.live(self.text(now))
            elif running is not None and now - max(said_at, running[1]) >= SAY_S:
                self.console.note(f"  {running[0]} {now - running[1]:.0f} s …")
                said_at = now


class StartReport(StageReport):
    """A report of the stages of a start, which a signal ends.

    SIGINT, SIGTERM and SIGUSR1 raise StartCut in the main thread until the context or another handler takes over.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.on_cut: Callable[[StartCut], None] | None = None  # called before the process is ended by force
        self._made: StartCut | None = None  # exception of the signal that ends this start
        self._leaving: threading.Timer | None = None
        self._handlers = [signal.getsignal(number) for number in STOP_SIGNALS]

    def __enter__(self) -> Self:
        self._install()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._leaving is not None:
            self._leaving.cancel()
        for number, handler in zip(STOP_SIGNALS, self._handlers, strict=True):
            signal.signal(number, handler)

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Show a stage of the start, and hold the handlers of signals after it."""
        try:
            with super().measure(name):
                yield
        except SystemExit as error:
            # Ray's handler does this, from when it is installed until `ray.init` returns.
            if error.code != signal.SIGTERM:
                raise
            raise StartCut(signal.SIGTERM, name) from None
        except KeyboardInterrupt as error:
            # Ray raises one of its own after an exception of a handler.
            raise self._made or error from None
        if not self._closed.is_set():
            self._install()  # again, because starting Ray and importing NeMo replace the handlers

    def _install(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._cut)

    def _cut(self, number: int, frame: FrameType | None) -> None:
        cut = StartCut(number, self._running[0] if self._running else None)
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_DFL)  # a second signal ends the process at once
        self._made = cut
        self._leaving = threading.Timer(CLOSING_S, self._leave, (cut,))
        self._leaving.daemon = True
        self._leaving.start()
        raise cut

    def _leave(self, cut: StartCut) -> None:
        """End the process, whose services do not close in time. Ray's processes end with their driver."""
        write_error(f"\n{cut}\n")
        if self.on_cut is not None:
            self.on_cut(cut)
        os._exit(cut.exit_code)
