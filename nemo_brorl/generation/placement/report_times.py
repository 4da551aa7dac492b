"""When an engine tells the driver how far its chunks are: one rule for the engines and for the model of a cluster.
Pure: the caller has the clock."""

from __future__ import annotations

SHORTEST_S = 0.25  # between two reports, however fast rollouts end


class ReportTimes:
    """A report is due once `every` rollouts have ended since anything was told, but not sooner than `SHORTEST_S` after
    that, or when `within_s` have passed. Only an engine with work reports; its time begins when it gets some."""

    def __init__(self, every: int, within_s: float) -> None:
        self.every, self.within_s = every, within_s
        self._num_untold = 0  # rollouts
        self._told_at = 0.0

    def note_ended(self, num: int = 1) -> None:
        """More rollouts have ended."""
        self._num_untold += num

    def note_told(self, now: float) -> None:
        """All news has just gone out."""
        self._num_untold, self._told_at = 0, now

    def note_begun(self, now: float) -> None:
        """There is work again."""
        self._told_at = now

    @property
    def due_at(self) -> float:
        """When a report is due at the latest."""
        return self._told_at + (SHORTEST_S if self._num_untold >= self.every else self.within_s)

    def is_due(self, now: float) -> bool:
        """Whether to report now."""
        return now >= min(self.due_at, self._told_at + self.within_s)
