"""Grade responses: what a verifier of this package says of them, in processes that end at a deadline.

    with Pool(seconds=10) as pool:
        grades = pool.grade("math", {"answer": "72"}, ["It is \\\\boxed{72}.", "No idea."])

A response that a verifier fails on (it raised, crashed, or took too long) has `failed`, apart from a reward of 0: who
trains on grades may leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from brorl_graders.processes.process_pool import ProcessPool, Verdicts
from brorl_graders.verifiers.payload import Deadlines
from brorl_graders.verifiers.registry import check_payload

SECONDS = 10.0  # that one response may take


class Grade(NamedTuple):
    """What became of one response."""

    reward: float  # 0 where the verifier failed
    reason: str  # why it failed, or what the verifier says of its reward; "": nothing
    failed: bool


class Processes(Protocol):
    """What grades responses for a pool."""

    def judge(self, verifier: str, payload: Mapping[str, Any], responses: Sequence[str], /) -> Verdicts:
        """Return scores, and reasons by index."""

    def close(self) -> None:
        """End them."""


class Pool:
    """Processes that grade. Use it as a context manager: they end with the block."""

    def __init__(self, seconds: float = SECONDS, processes: Processes | None = None) -> None:
        """`seconds`: that one response may take; then it is a failed grade. `processes`: others than its own."""
        self._processes = processes or ProcessPool(Deadlines(seconds))

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def grade(self, verifier: str, payload: Mapping[str, Any], responses: Sequence[str]) -> list[Grade]:
        """Grade responses to one prompt, in their order. Raises DataError for a payload that the verifier cannot score
        with, ConfigError for a name that is none of this package's verifiers."""
        check_payload(verifier, dict(payload))
        verdicts = self._processes.judge(verifier, payload, responses)
        grades = []
        for index, score in enumerate(verdicts.scores):
            reason = verdicts.reasons.get(index, "")
            grades.append(Grade(0.0 if score is None else score, reason, score is None))
        return grades

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def grade(verifier: str, payload: Mapping[str, Any], response: str, seconds: float = SECONDS) -> Grade:
    """Grade one response in a process of its own. For many, a `Pool` is faster. Raises as `Pool.grade`."""
    with Pool(seconds) as pool:
        return pool.grade(verifier, payload, [response])[0]
