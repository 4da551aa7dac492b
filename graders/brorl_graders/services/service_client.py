"""HTTP client for scoring services and judges, which limits, spaces and retries requests."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx

from brorl_graders.base.errors import ConfigError, ServiceError
from brorl_graders.base.settings import Endpoint, ServiceLimits
from brorl_graders.base.verdicts import LATE
from brorl_graders.verifiers import services
from brorl_graders.verifiers.services import ServiceReplyError, shown_url

MAX_REPLY = 16 * 2**20  # largest reply, in bytes
REACH_S = 20.0  # seconds for the check at the start
MAX_WAIT_S = 30.0  # longest wait between two attempts
TRY_AGAIN = (408, 409, 425, 429)  # status codes that are retried, as all from 500 on; others would be refused again

Read = TypeVar("Read")


class AttemptError(Exception):
    """An error of one attempt at a request to a service, after which another attempt may succeed."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s  # seconds that the service asks to wait


class ServiceClient:
    """The HTTP client of one scoring worker for requests to services. It belongs to one event loop."""

    def __init__(self, settings: ServiceLimits) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.request_s = 0.0  # seconds of all requests together
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._next_start = 0.0  # earliest start of the next request, where the rate is limited
        limits = httpx.Limits(max_connections=settings.concurrency)
        self._http = httpx.AsyncClient(
            timeout=None, limits=limits
        )  # no httpx timeout: each attempt has a limit as a whole

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        read: Callable[[Any], Read],
    ) -> Read:
        """Send a request to a scoring service, with retries, and return what `read` makes of the JSON reply.

        A ServiceReplyError that `read` raises counts as a failed attempt. Raises ServiceError when attempts or time are
        used up.
        """
        settings = self.settings
        end = time.monotonic() + settings.deadline_s
        reason = ""
        for attempt in range(settings.max_attempts):
            try:
                reply = await self._attempt(url, body, headers, end)
                return read(reply)
            except AttemptError as error:
                reason = str(error)
                wait_s = error.wait_s
            except ServiceReplyError as error:
                reason = str(error)
                wait_s = 0.0
            longest = min(settings.backoff_s * 2**attempt, MAX_WAIT_S)
            wait_s = max(wait_s, random.uniform(0, longest))  # "full jitter"
            if attempt + 1 == settings.max_attempts:
                break
            if time.monotonic() + wait_s >= end:
                reason = f"{LATE} {settings.deadline_s:g} s, last: {reason}"
                break
            self.counts["retries"] += 1
            await asyncio.sleep(wait_s)
        raise ServiceError(f"{shown_url(url)}: {reason}")

    async def close(self) -> None:
        """Close the connections to scoring services."""
        await self._http.aclose()

    async def _attempt(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        end: float,
    ) -> Any:
        """Send a request to a scoring service once, and return the JSON of the reply.

        Raises AttemptError, or ServiceError where another attempt would be refused too.
        """
        async with self._slots:
            await self._wait_for_turn()
            start = time.monotonic()
            limit_s = min(self.settings.request_timeout_s, max(end - start, 0.0))
            self.counts["requests"] += 1
            try:
                content = await asyncio.wait_for(self._read_content(url, body, headers), limit_s)
            except TimeoutError:
                raise AttemptError(f"{LATE} {limit_s:.3g} s") from None
            except httpx.HTTPError as error:
                raise AttemptError(f"{type(error).__name__} {error}".strip()) from error
            finally:
                self.request_s += time.monotonic() - start
        try:
            return json.loads(content)
        except ValueError:
            raise AttemptError(f"it did not reply JSON: {content[:100]!r}") from None

    async def _read_content(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        async with self._http.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code >= 500 or response.status_code in TRY_AGAIN:
                raise AttemptError(f"status {response.status_code}", _seconds_to_wait(response))
            content = b""
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_REPLY:
                    raise AttemptError(f"its reply is longer than {MAX_REPLY} bytes")
        if response.status_code != httpx.codes.OK:
            raise ServiceError(f"{shown_url(url)}: status {response.status_code}: {content[:300]!r}")
        return content

    async def _wait_for_turn(self) -> None:
        """Wait until the next request to a service may start, so that starts are spaced evenly."""
        rate = self.settings.requests_per_s
        if rate is None:
            return
        now = time.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + 1.0 / rate
        await asyncio.sleep(start - now)


def check_endpoint(endpoint: Endpoint) -> None:
    """Ask a scoring service or judge for a reply, to find errors before anything expensive starts.

    Raises ConfigError when the service cannot be reached or refuses the key.
    """
    headers = services.headers(endpoint)
    try:
        if endpoint.is_judge:
            url = services.judge_url(endpoint, "models")
            answer = httpx.get(url, headers=headers, timeout=REACH_S)
        else:
            url = endpoint.url
            body = services.service_request({}, (), ())
            answer = httpx.post(url, json=body, headers=headers, timeout=REACH_S)
    except httpx.HTTPError as error:
        raise ConfigError(
            f"endpoint {shown_url(endpoint.name)}: {shown_url(url)} cannot be reached ({type(error).__name__}: "
            f"{error}); start the service, or set its address"
        ) from error
    if answer.status_code in (401, 403):
        raise ConfigError(
            f"endpoint {shown_url(endpoint.name)}: {shown_url(url)} refuses with status {answer.status_code}; set "
            "the environment variable that holds its key: rewards.services.endpoints=[{api_key_variable: NAME, …}]"
        )


def _seconds_to_wait(response: httpx.Response) -> float:
    """Return the seconds that a service asks to wait before another attempt, or 0 where it does not say."""
    try:
        return float(response.headers.get("Retry-After", "0"))
    except ValueError:  # the header holds a date
        return 0.0
