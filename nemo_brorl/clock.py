"""Where the time of a step goes, and when a run should stop."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType

from nemo_brorl.logs import get_logger

log = get_logger(__name__)


class Stopwatch:
    """Adds up seconds by name: `with watch.measure("sync"): …`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to `name`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start


class StopRequest:
    """Set by Ctrl-C, SIGTERM or the time limit; the loop looks at it between steps. A second Ctrl-C interrupts at once."""

    def __init__(self, time_limit_s: float | None) -> None:
        self.deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self.reason: str | None = None

    def install(self) -> None:
        """Take over SIGINT and SIGTERM in the main thread."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def should_stop(self, next_step_s: float) -> bool:
        """Whether to stop now, given how long the next step is expected to take."""
        if self.reason is None and self.deadline is not None and time.monotonic() + next_step_s > self.deadline:
            self.reason = "the time limit is near"
        return self.reason is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
        log.warning("%s: finishing this step, then saving; once more to stop at once", self.reason)
