"""Grade responses: what a verifier of this package says of them, in processes that end at a deadline.

    with Pool(seconds=10) as pool:
        grades = pool.grade("math", {"answer": "72"}, ["It is \\\\boxed{72}.", "No idea."])

A response that a verifier fails on (it raised, crashed, or took too long) has `failed`, apart from a reward of 0: who
trains on grades may leave it out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brorl_graders.base.payload import Deadlines
from brorl_graders.base.settings import ServiceLimits
from brorl_graders.base.verdicts import Verdicts
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers import composite
from brorl_graders.verifiers.registry import check_payload, endpoints_in
from brorl_graders.verifiers.services import Asked, Messages, is_remote

if TYPE_CHECKING:
    from brorl_graders.services.remote_scores import RemoteScores

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

    def load(self, verifier: str, /) -> None:
        """Import a verifier and its libraries."""

    def child_pids(self) -> list[int]:
        """Return the process ids of the current children."""

    def close(self) -> None:
        """End them."""


class Pool:
    """Processes that score responses, and the services that settings name. `judge` may be called from many threads."""

    def __init__(
        self,
        seconds: float | Deadlines = SECONDS,
        *,
        services: ServiceLimits | None = None,
        record_folder: Path | None = None,
        worker: int = 0,
        processes: Processes | None = None,
    ) -> None:
        """Start what grades.

        `seconds`: that one response may take; then it is a failed grade. `services`: how they are asked.
        `record_folder`: where their answers are kept, by `worker`; None: nowhere. `processes`: others than its own.
        """
        deadlines = seconds if isinstance(seconds, Deadlines) else Deadlines(seconds)
        self._processes = processes or ProcessPool(deadlines)
        self._service_limits = services or ServiceLimits()
        self._record_folder = record_folder
        self._worker = worker
        self._remote: RemoteScores | None = None
        self._lock = threading.Lock()

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
        verdicts = self.judge(verifier, payload, responses)
        grades = []
        for index, score in enumerate(verdicts.scores):
            reason = verdicts.reasons.get(index, "")
            grades.append(Grade(0.0 if score is None else score, reason, score is None))
        return grades

    def judge(
        self,
        verifier: str,
        payload: Mapping[str, Any],
        texts: Sequence[str],
        prompt: Messages = (),
        counts: Mapping[str, int] | None = None,
    ) -> Verdicts:
        """Have processes score what they can, and services the rest; a composition is one of both, part by part.

        `prompt`: its messages, which services are told. `counts`: responses of each text; None: one. Raises ConfigError
        when a verifier cannot be loaded or a key is missing, ResourceError when no process can be started, ServiceError
        where a service that fails ends the run.
        """
        if is_remote(verifier):
            remote = self._services()
            remote.counts["responses"] += len(texts) if counts is None else sum(counts[text] for text in texts)
            return remote.judge(Asked(verifier, payload, prompt), texts)
        if endpoints_in(verifier, payload):

            def judge_part(part: composite.Part, waiting: Sequence[str]) -> Verdicts:
                return self.judge(part.verifier, part.payload, waiting, prompt, counts)

            return composite.judge_by_parts(payload, texts, judge_part)
        return self._processes.judge(verifier, payload, texts)

    def load(self, verifier: str) -> None:
        """Import a verifier and its libraries before the first text needs them. Raises as `judge`."""
        if is_remote(verifier):
            self._services()
        else:
            self._processes.load(verifier)

    def take_usage(self) -> dict[str, float]:
        """Return what services were asked since the last call, by the names of metrics without their group."""
        return self._services().take_usage()

    def close(self) -> None:
        """End the processes, and what services are asked."""
        if self._remote is not None:
            self._remote.close()
        self._processes.close()

    def child_pids(self) -> list[int]:
        """Return the process ids of the current children."""
        return self._processes.child_pids()

    def _services(self) -> RemoteScores:
        """Made when a verifier behind a network is first asked for."""
        # Its client's library is an extra of the graders, and who asks no service need not have it.
        from brorl_graders.services.remote_scores import RemoteScores

        with self._lock:
            if self._remote is None:
                self._remote = RemoteScores(self._service_limits, self._record_folder, self._worker)
            return self._remote


def grade(verifier: str, payload: Mapping[str, Any], response: str, seconds: float = SECONDS) -> Grade:
    """Grade one response in a process of its own. For many, a `Pool` is faster. Raises as `Pool.grade`."""
    with Pool(seconds) as pool:
        return pool.grade(verifier, payload, [response])[0]
