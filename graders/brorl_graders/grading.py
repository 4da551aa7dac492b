"""Grade responses with a verifier of this package, in processes that are ended at a deadline.

    with Pool(seconds=10) as pool:
        grades = pool.grade("math", {"answer": "72"}, ["It is \\\\boxed{72}.", "No idea."])

A response has `failed` when its verifier raised, crashed or took too long. This is not a reward of 0: who trains on
grades may leave such responses out.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brorl_graders.answers import answer_in, reference_in
from brorl_graders.base.errors import BroRLError, ConfigError, DataError
from brorl_graders.base.extras import require
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.settings import ServiceLimits
from brorl_graders.base.verdicts import Verdicts
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers import composite
from brorl_graders.verifiers.registry import check_payload, endpoints_in
from brorl_graders.verifiers.services import Messages, ServiceCall, is_remote

if TYPE_CHECKING:
    from brorl_graders.services.remote_scores import RemoteScores

SECONDS = 10.0  # default time for one response
THREADS_PER_CORE = 4  # rows of `grade_rows` that are graded at once


class _Grade(NamedTuple):
    reward: float  # 0 when the verifier failed
    reason: str  # why the verifier failed, or its comment on the reward; "": no comment
    failed: bool


class Grade(_Grade):
    """The reward of one response and its reason. The answer and the reference are read when they are asked for."""

    source: tuple[str, Mapping[str, Any], str] | None = None  # verifier, payload and response

    @cached_property
    def answer(self) -> str | None:
        """The answer that was read out of the response. None: none was read, or the verifier reads none."""
        return None if self.source is None else answer_in(*self.source)

    @cached_property
    def reference(self) -> str | None:
        """The right answers that were read out of the payload, with "or" between them. None: it has none."""
        return None if self.source is None else reference_in(*self.source[:2])


class Processes(Protocol):
    """Processes that score the responses of a pool. `ProcessPool` is one implementation."""

    def judge(self, verifier: str, payload: Mapping[str, Any], responses: Sequence[str], /) -> Verdicts:
        """Score texts with a verifier, and return the scores, with reasons by the index of the text."""

    def load(self, verifier: str, /) -> None:
        """Import a verifier and its libraries, before the first text is scored."""

    def child_pids(self) -> list[int]:
        """Return the process ids of the child processes that score responses."""

    def take_late_s(self) -> float:
        """Return the seconds since the last call that processes lost to texts that were ended at their deadline."""

    def close(self) -> None:
        """End all processes that score responses."""


class Pool:
    """Processes that score responses, and clients of the services that settings name. Threads may share one pool."""

    def __init__(
        self,
        seconds: float | Deadlines = SECONDS,
        *,
        services: ServiceLimits | None = None,
        record_folder: Path | None = None,
        worker: int = 0,
        processes: int | Processes | None = None,
    ) -> None:
        """Start the processes that grade responses.

        `seconds` limits the time for one response. A response that takes longer has a failed grade. `services` limits
        requests to scoring services. With `record_folder` the answers of services are stored there, in one file for
        each `worker`. `processes` says how many processes score at once, None for one on each core. An object replaces
        the pool's own processes. Raises ConfigError for a number below 1.
        """
        if isinstance(processes, (int, float, str)) and (type(processes) is not int or processes < 1):
            raise ConfigError(f"processes is {processes!r}; write a whole number from 1, or None for one on each core")
        deadlines = seconds if isinstance(seconds, Deadlines) else Deadlines(seconds)
        if processes is None or isinstance(processes, int):
            processes = ProcessPool(deadlines, processes)
        self._processes: Processes = processes
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
        """Grade responses to one prompt, and return the grades in the order of the responses.

        A response that is no text has a failed grade, and so has each response to a payload that is no mapping or
        cannot be sent to a process. Raises DataError for a payload that the verifier cannot score with and for
        responses that are no list, and ConfigError for an unknown verifier.
        """
        if isinstance(responses, (str, bytes, Mapping)) or not isinstance(responses, Iterable):
            raise DataError(f"the responses are of type {type(responses).__name__}: give a list of texts")
        responses = list(responses)
        try:
            payload = _plain(payload)
        except ValueError as error:
            return [Grade(0.0, str(error), True) for _ in responses]
        check_payload(verifier, payload)
        verdicts = self.judge(verifier, payload, responses)
        grades = []
        for index, score in enumerate(verdicts.scores):
            one = Grade(0.0 if score is None else score, verdicts.reasons.get(index, ""), score is None)
            one.source = verifier, payload, responses[index]
            grades.append(one)
        return grades

    async def agrade(self, verifier: str, payload: Mapping[str, Any], responses: Sequence[str]) -> list[Grade]:
        """Grade responses to one prompt as `grade` does, while other coroutines run."""
        return await asyncio.to_thread(self.grade, verifier, payload, responses)

    def grade_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Grade]:
        """Grade responses to many prompts at once, and return the grades in the order of the rows.

        A row is like `{"verifier": "math", "payload": {"answer": "7"}, "response": "…"}`. One that cannot be graded has
        a failed grade.
        """
        with ThreadPoolExecutor(THREADS_PER_CORE * len(os.sched_getaffinity(0))) as threads:
            return list(threads.map(self._grade_row, rows))

    def _grade_row(self, row: Mapping[str, Any]) -> Grade:
        try:
            return self.grade(row["verifier"], row["payload"], [row["response"]])[0]
        except BroRLError as error:
            return Grade(0.0, str(error), True)
        except Exception as error:  # noqa: BLE001, values of a caller may raise anything
            return Grade(0.0, f"the row needs verifier, payload and response: {type(error).__name__}: {error}", True)

    def judge(
        self,
        verifier: str,
        payload: Mapping[str, Any],
        texts: Sequence[str],
        prompt: Messages = (),
        counts: Mapping[str, int] | None = None,
    ) -> Verdicts:
        """Score texts with processes or remote services, as each verifier and each part of a composite verifier needs.

        `prompt` has the prompt's messages, which are sent to services. `counts` has the number of responses for each
        text. Without `counts` each text is one response. Raises ConfigError when a verifier cannot be loaded or an API
        key is missing, and ResourceError when no process can be started. Raises ServiceError when a service fails and
        settings say that this ends the run.
        """
        if is_remote(verifier):
            remote = self._services()
            remote.counts["responses"] += len(texts) if counts is None else sum(counts[text] for text in texts)
            return remote.judge(ServiceCall(verifier, payload, prompt), texts)
        if endpoints_in(verifier, payload):

            def judge_part(part: composite.Part, waiting: Sequence[str]) -> Verdicts:
                return self.judge(part.verifier, part.payload, waiting, prompt, counts)

            return composite.judge_by_parts(payload, texts, judge_part)
        return self._processes.judge(verifier, payload, texts)

    def load(self, verifier: str) -> None:
        """Import a verifier and its libraries before the first text needs them.

        Raises ConfigError when the verifier cannot be loaded, and ResourceError when no process can be started.
        """
        if is_remote(verifier):
            self._services()
        else:
            self._processes.load(verifier)

    def take_usage(self) -> dict[str, float]:
        """Return counts and seconds of requests to scoring services since the last call of this method, by metric.

        The names of the metrics come without the prefix of their group. `late_s` is the time of processes for texts
        that were ended at their deadline.
        """
        usage = {} if self._remote is None else self._remote.take_usage()
        return {**usage, "late_s": self._processes.take_late_s()}

    def close(self) -> None:
        """End the processes that score responses, and the client of scoring services."""
        if self._remote is not None:
            self._remote.close()
        self._processes.close()

    def child_pids(self) -> list[int]:
        """Return the process ids of the child processes that score responses."""
        return self._processes.child_pids()

    def _services(self) -> RemoteScores:
        """Return the client of scoring services, which is made at the first call."""
        require("httpx")
        from brorl_graders.services.remote_scores import RemoteScores

        with self._lock:
            if self._remote is None:
                self._remote = RemoteScores(self._service_limits, self._record_folder, self._worker)
            return self._remote


def _plain(payload: Any) -> dict[str, Any]:
    """Copy a payload into a dictionary. Raises ValueError for one that is no mapping or cannot be read."""
    if not isinstance(payload, Mapping):
        raise ValueError(f"the payload is of type {type(payload).__name__}: give a mapping like {{'answer': '7'}}")
    try:
        return dict(payload)
    except Exception as error:
        raise ValueError(f"the payload cannot be read: {type(error).__name__}: {error}") from error


def grade(verifier: str, payload: Mapping[str, Any], response: str, seconds: float = SECONDS) -> Grade:
    """Grade one response with a verifier in a new process.

    A `Pool` grades many responses faster. Raises DataError for a payload that the verifier cannot score with, and
    ConfigError for an unknown verifier.
    """
    with Pool(seconds) as pool:
        return pool.grade(verifier, payload, [response])[0]
