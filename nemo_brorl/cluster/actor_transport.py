"""The driver's calls to its actors: a small Protocol, and Ray behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from nemo_brorl.core.errors import BroRLError

# ActorUnschedulableError: of an actor that was replaced, while the node that it belongs to was lost.
ACTOR_FAILURES = (RayActorError, ActorUnschedulableError, RayTaskError, GetTimeoutError, ObjectLostError)


class ActorTransport(Protocol):
    """Results of calls to actors. A call itself is `actor.method.remote(…)`, which returns a reference at once;
    everything that waits, ends an actor or looks at a clock goes through here, so that tests need neither."""

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def wait(self, references: Sequence[Any], timeout_s: float = 0.0) -> list[Any]:
        """Return the references that have resolved; none only after `timeout_s` without any."""

    def results(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Return the results in order, all within `timeout_s`. A call that failed, or is late, has its exception (one
        of ACTOR_FAILURES) in its place."""

    def put(self, value: Any) -> Any:
        """Return a reference that has resolved to `value`."""

    def kill(self, actor: Any) -> None:
        """End an actor, whatever it is doing."""


class RayTransport:
    """Actors of an initialised Ray."""

    def now(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def wait(self, references: Sequence[Any], timeout_s: float = 0.0) -> list[Any]:
        """See `ActorTransport`; nothing is fetched."""
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
        """See `ActorTransport`; one call of Ray's when nothing failed."""
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
        """Return a reference into the object store."""
        return ray.put(value)

    def kill(self, actor: Any) -> None:
        """End an actor's process at once."""
        ray.kill(actor, no_restart=True)


def explain(cause: object) -> str:
    """Say in one line why an actor failed, without the remote traceback."""
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
