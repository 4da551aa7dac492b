"""When an engine tells the driver how far its chunks are: one rule for engines and for the model of a cluster; the
caller has the clock."""

from __future__ import annotations

from concurrent.futures import Future

from nemo_brorl.generation.chunk_messages import Progress

# Between two reports, however fast rollouts end.
SHORTEST_S = 0.25


class ReportTimes:
    """A report is due once `every` rollouts have ended since anything was told, but not sooner than `SHORTEST_S` after
    that, or when `within_s` have passed. Only an engine with work reports; its time begins when it gets some."""

    def __init__(self, every: int, within_s: float) -> None:
        self.every = every
        self.within_s = within_s
        self._num_unreported = 0  # rollouts
        self._reported_at = 0.0

    def record_finished(self, num: int = 1) -> None:
        """Note that more rollouts have ended."""
        self._num_unreported += num

    def mark_reported(self, now: float) -> None:
        """Note that everything there is to tell has just gone out."""
        self._num_unreported = 0
        self._reported_at = now

    def mark_started(self, now: float) -> None:
        """Note that there is work again."""
        self._reported_at = now

    @property
    def due_at(self) -> float:
        """When a report is due at the latest."""
        has_enough = self._num_unreported >= self.every
        return self._reported_at + (SHORTEST_S if has_enough else self.within_s)

    def is_due(self, now: float) -> bool:
        """Say whether to report now."""
        return now >= min(self.due_at, self._reported_at + self.within_s)


class ProgressReports:
    """The driver's one question about progress, open until `times` say that it is due. An engine without work is never
    due, so nobody asks in vain. `now` are seconds of one clock."""

    def __init__(self) -> None:
        self.times = ReportTimes(every=1, within_s=0.0)
        self._question: Future[Progress] | None = None

    def ask(
        self,
        every: int,
        within_s: float,
        question: Future[Progress],
    ) -> None:
        """Answer `question` with the next report. One that was open until now is answered with nothing."""
        self.drop()
        self.times.every = every
        self.times.within_s = within_s
        self._question = question

    def is_due(self, now: float) -> bool:
        """Say whether the open question should be answered now."""
        return self._question is not None and self.times.is_due(now)

    def tell(self, progress: Progress, now: float) -> None:
        """Answer the open question."""
        self._answer(progress)
        self.times.mark_reported(now)

    def drop(self) -> None:
        """Answer with nothing: nobody waits any more."""
        self._answer(())

    def _answer(self, progress: Progress) -> None:
        if self._question is not None:
            self._question.set_result(progress)
        self._question = None
