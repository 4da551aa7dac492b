"""Rules for when an engine reports its progress to the driver. Callers pass the time.

Engines use them, and so does the simulated cluster of the lab.
"""

from __future__ import annotations

from concurrent.futures import Future

from nemo_brorl.generation.chunk_messages import Progress

# Shortest time between two reports, in seconds.
SHORTEST_S = 0.25


class ReportTimes:
    """The times at which one engine reports its progress.

    A report is due once `every` rollouts have ended since the last one, but not within `SHORTEST_S` seconds of it. It
    is also due after `within_s` seconds. Only an engine with work reports, and its time starts when it gets work. `now`
    is in seconds, of one clock.
    """

    def __init__(self, every: int, within_s: float) -> None:
        self.every = every
        self.within_s = within_s
        self._num_unreported = 0  # rollouts that ended since the last report
        self._reported_at = 0.0

    def record_finished(self, num: int = 1) -> None:
        """Add to the number of rollouts that have ended since the engine's last progress report."""
        self._num_unreported += num

    def mark_reported(self, now: float) -> None:
        """Reset the count of ended rollouts and the timer, because the engine sent a progress report."""
        self._num_unreported = 0
        self._reported_at = now

    def mark_started(self, now: float) -> None:
        """Restart the timer of progress reports, because an idle engine got work."""
        self._reported_at = now

    @property
    def due_at(self) -> float:
        """Return the latest time at which the engine's next progress report is due, in seconds."""
        has_enough = self._num_unreported >= self.every
        return self._reported_at + (SHORTEST_S if has_enough else self.within_s)

    def may_report(self, now: float) -> bool:
        """Return True if an engine's answer may carry a progress report.

        The last report must be at least `SHORTEST_S` seconds old.
        """
        return now >= self._reported_at + SHORTEST_S

    def is_due(self, now: float) -> bool:
        """Return True if the engine's next progress report is due at time `now`."""
        return now >= min(self.due_at, self._reported_at + self.within_s)


class ProgressReports:
    """The driver's one open request for a progress report.

    It is answered once `times` says that a report is due. An engine without work is never due, so its request stays
    open. `now` is in seconds, of one clock.
    """

    def __init__(self) -> None:
        self.times = ReportTimes(every=1, within_s=0.0)
        self._question: Future[Progress] | None = None

    def ask(
        self,
        every: int,
        within_s: float,
        question: Future[Progress],
    ) -> None:
        """Store the driver's request for a progress report, a future that the next report resolves.

        An earlier request that is still open resolves to ().
        """
        self.drop()
        self.times.every = every
        self.times.within_s = within_s
        self._question = question

    def is_due(self, now: float) -> bool:
        """Return True if the driver waits for a progress report and one is due."""
        return self._question is not None and self.times.is_due(now)

    def tell(self, progress: Progress, now: float) -> None:
        """Send the driver the progress report of an engine's rollouts that it has requested, if a request is open."""
        self._answer(progress)
        self.times.mark_reported(now)

    def drop(self) -> None:
        """Resolve the driver's open request for a progress report with (), because the driver no longer waits."""
        self._answer(())

    def _answer(self, progress: Progress) -> None:
        if self._question is not None:
            self._question.set_result(progress)
        self._question = None
