"""Wait for calls to actors: a small Protocol, and its implementation with Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from nemo_brorl.core.errors import BroRLError

# A replaced actor raises ActorUnschedulableError when the node that it is bound to was lost.
ACTOR_FAILURES = (RayActorError, ActorUnschedulableError, RayTaskError, GetTimeoutError, ObjectLostError)


class ActorTransport(Protocol):
    """Access to the results of actor calls.

    A call itself is `actor.method.remote(…)`, which returns a reference at once. Everything that waits, ends an actor
    or reads a clock goes through this Protocol, so that tests need neither Ray nor time.
    """

    def now(self) -> float:
        """Return the time in seconds of a clock that never goes back."""

    def wait(self, references: Sequence[Any], timeout_s: float = 0.0) -> list[Any]:
        """Return those references to Ray actor calls that have resolved.

        The list is empty when no call has resolved within `timeout_s` seconds.
        """

    def results(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Return the results of Ray references in order, all within `timeout_s` seconds.

        A call that failed or did not answer in time has its exception as its result, which is one of ACTOR_FAILURES.
        """

    def put(self, value: Any) -> Any:
        """Return a Ray object reference that has already resolved to `value`."""

    def kill(self, actor: Any) -> None:
        """Kill an actor's process at once, even in the middle of a call."""


class RayTransport:
    """The transport to actors of an initialised Ray, as ActorTransport describes it."""

    def now(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def wait(self, references: Sequence[Any], timeout_s: float = 0.0) -> list[Any]:
        """Return those references to Ray actor calls that have resolved, without fetching their values."""
        if not references:
            return []
        waiting = list(references)
        if timeout_s > 0:
            ray.wait(waiting, timeout=timeout_s, fetch_local=False)
        resolved, _ = ray.wait(
            waiting,
            num_returns=len(waiting),
            timeout=0,
            fetch_local=False,
        )
        return resolved

    def results(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Return the results or exceptions of Ray actor calls, in order.

        When no call has failed, a single `ray.get` fetches all results.
        """
        if not references:
            return []
        deadline = time.monotonic() + timeout_s
        try:
            results: list[Any] = ray.get(list(references), timeout=timeout_s)
        except ACTOR_FAILURES:
            results = []
            for reference in references:
                left_s = deadline - time.monotonic()
                results.append(_result_or_failure(reference, max(0.0, left_s)))
        return results

    def put(self, value: Any) -> Any:
        """Return a reference to `value` in Ray's object store."""
        return ray.put(value)

    def kill(self, actor: Any) -> None:
        """Kill a Ray actor's process at once, without a restart."""
        ray.kill(actor, no_restart=True)


def explain(cause: object) -> str:
    """Return one line that says why an actor failed, without the remote traceback."""
    if isinstance(cause, RayTaskError):
        inner = cause.cause
        if isinstance(inner, BroRLError):
            return str(inner)
        return f"{type(inner).__name__}: {inner}"
    for line in reversed(str(cause).splitlines()):
        text = line.partition(" Some common causes include")[0].strip()
        if text:
            return text
    return type(cause).__name__


def _result_or_failure(reference: Any, timeout_s: float) -> Any:
    try:
        return ray.get(reference, timeout=timeout_s)
    except ACTOR_FAILURES as failure:
        return failure
