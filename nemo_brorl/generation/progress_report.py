"""The one question about an engine's progress that is open at a time. On the engine's vLLM thread."""

from __future__ import annotations

from concurrent.futures import Future

from nemo_brorl.generation.chunk_task import ChunkProgress
from nemo_brorl.generation.placement.report_times import ReportTimes

News = tuple[ChunkProgress, ...]


class Reports:
    """A question stays open until `ReportTimes` says that it is due. An engine without work is never due, so nobody
    asks in vain.

    `note_told` belongs to whatever else carried the news, `note_begun` to the end of an idle time. `now` are seconds of
    one clock.
    """

    def __init__(self) -> None:
        self._question: Future[News] | None = None
        self._times = ReportTimes(every=1, within_s=0.0)
        self.note_ended, self.note_told, self.note_begun = (
            self._times.note_ended,
            self._times.note_told,
            self._times.note_begun,
        )

    def ask(self, every: int, within_s: float, answer: Future[News]) -> None:
        """The next report goes to `answer`. One that was waited for until now is answered with nothing."""
        self.drop()
        self._question, self._times.every, self._times.within_s = answer, every, within_s

    def is_due(self, now: float) -> bool:
        """Whether the open question should be answered now."""
        return self._question is not None and self._times.is_due(now)

    def tell(self, news: News, now: float) -> None:
        """Answer the open question."""
        self._answer(news)
        self.note_told(now)

    def drop(self) -> None:
        """Nobody waits any more."""
        self._answer(())

    def _answer(self, news: News) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.set_result(news)
