"""The real pool that scores responses, watched: why verifiers failed, and which processes there are."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from brorl_graders.base.payload import TIMEOUT_KEY, Deadlines
from brorl_graders.base.settings import CodeLimits
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers.code import code

TEXT_SECONDS = 2.0
CODE_SECONDS = 5.0
TEST_SECONDS = 1.0
PATIENT = 20.0  # times as long as these limits, for honest responses on a busy machine
OVERDUE = "has not ended after"  # how the pool begins to say that a deadline has come


class WatchedPool(ProcessPool):
    """The pool, and the reason of each failure."""

    def __init__(self, patience: float = 1.0) -> None:
        self.reasons: list[str] = []
        self._patience = patience
        limits = CodeLimits(test_timeout_s=TEST_SECONDS * patience, preload=["numpy"])
        code.configure(limits, CODE_SECONDS * patience)
        super().__init__(Deadlines(TEXT_SECONDS * patience, {"code": CODE_SECONDS * patience}))

    def rewards(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> list[float | None]:
        """Reward of each text, None where the verifier failed."""
        payload = {key: value * self._patience if key == TIMEOUT_KEY else value for key, value in payload.items()}
        verdicts = self.judge(verifier, payload, texts)
        self.reasons += [verdicts.reasons[index] for index, score in enumerate(verdicts.scores) if score is None]
        return verdicts.scores

    def replace_children(self) -> None:
        """Go on with a process that has scored nothing."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        # A text may find that its process has been killed.
        self.score("exact_match", {"answer": "a"}, ["a"])
        self.reasons.clear()

    def processes(self) -> list[int]:
        """Process ids of those that score."""
        return self.child_pids()
