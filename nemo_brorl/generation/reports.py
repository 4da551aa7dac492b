"""When an engine tells how far its chunks are: the one question about it that is open at a time. On the engine's vLLM thread."""

from __future__ import annotations

from concurrent.futures import Future

from nemo_brorl.generation.chunk_work import ChunkProgress

SHORTEST_S = 0.25  # between two reports, however fast rollouts end

News = tuple[ChunkProgress, ...]


class Reports:
    """A question stays open until it is due: `every` rollouts have ended since anything was told, but not sooner than `SHORTEST_S`
    after that, or `within_s` have passed. An engine without work is not due, so nobody asks in vain.

    Times are seconds of one clock. `note_told` belongs to whatever else carried the news, `note_begun` to the end of an idle time.
    """

    def __init__(self) -> None:
        self._question: Future[News] | None = None
        self._every, self._within_s = 1, 0.0
        self._num_untold = 0  # rollouts
        self._told_at = 0.0

    def ask(self, every: int, within_s: float, answer: Future[News]) -> None:
        """The next report goes to `answer`. One that was waited for until now is answered with nothing."""
        self.drop()
        self._question, self._every, self._within_s = answer, every, within_s

    def note_ended(self) -> None:
        """Another rollout has ended."""
        self._num_untold += 1

    def note_told(self, now: float) -> None:
        """All news has just gone out."""
        self._num_untold, self._told_at = 0, now

    def note_begun(self, now: float) -> None:
        """There is work again."""
        self._told_at = now

    def is_due(self, now: float) -> bool:
        """Whether the open question should be answered now."""
        if self._question is None:
            return False
        silent_s = now - self._told_at
        return silent_s >= self._within_s or (self._num_untold >= self._every and silent_s >= SHORTEST_S)

    def tell(self, news: News, now: float) -> None:
        """Answer the open question."""
        question, self._question = self._question, None
        if question is not None:
            question.set_result(news)
        self.note_told(now)

    def drop(self) -> None:
        """Nobody waits any more."""
        question, self._question = self._question, None
        if question is not None:
            question.set_result(())
