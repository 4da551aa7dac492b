"""HTTP client for scoring services and judges, which limits, spaces and retries requests."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from brorl_graders.base.errors import ConfigError, ServiceError
from brorl_graders.base.foreign import read_json
from brorl_graders.base.settings import Endpoint, ServiceLimits
from brorl_graders.base.verdicts import LATE
from brorl_graders.verifiers import services
from brorl_graders.verifiers.services import ServiceReplyError, shown_url

MAX_REPLY = 16 * 2**20  # largest reply, in bytes
REACH_S = 20.0  # seconds for the check at the start
MAX_WAIT_S = 30.0  # longest wait between two attempts
TRY_AGAIN = (408, 409, 425, 429)  # status codes that are retried, as all from 500 on; others would be refused again
BUSY = (429, 503)  # status codes of a service that is there and has no time
PLAIN = {"Accept-Encoding": "identity"}  # a compressed reply could unpack to gigabytes

Read = TypeVar("Read")
log = logging.getLogger(__name__)


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
        self._http = _client(limits)
        self._direct = _client(limits, is_direct=True)

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        read: Callable[[Any], Read],
    ) -> Read:
        """Send a request to a scoring service, with retries, and return what `read` makes of the JSON reply.

        Whatever `read` or the reading of a reply raises counts as a failed attempt. Raises ServiceError when attempts
        or time are used up.
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
            except ServiceError:
                raise
            except Exception as error:  # noqa: BLE001 a reply may be anything, and must not end the run
                kind = "" if isinstance(error, ServiceReplyError) else type(error).__name__
                reason = f"{kind} {error}".strip()
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
        await self._direct.aclose()

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
            finally:
                self.request_s += time.monotonic() - start
        try:
            return read_json(content, most_bytes=MAX_REPLY)
        except ValueError as error:
            raise AttemptError(f"it did not reply JSON ({error}): {content[:100]!r}") from None

    async def _read_content(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        http = self._direct if is_local(url) else self._http
        async with http.stream("POST", url, json=body, headers={**headers, **PLAIN}) as response:
            if response.status_code >= 500 or response.status_code in TRY_AGAIN:
                raise AttemptError(f"status {response.status_code}", _seconds_to_wait(response))
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise AttemptError("its reply is compressed, which the request did not accept")
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > MAX_REPLY:
                    raise AttemptError(f"its reply is longer than {MAX_REPLY} bytes")
        if not response.is_success:
            raise ServiceError(f"{shown_url(url)}: status {response.status_code}: {bytes(content[:300])!r}")
        return bytes(content)

    async def _wait_for_turn(self) -> None:
        """Wait until the next request to a service may start, so that starts are spaced evenly."""
        rate = self.settings.requests_per_s
        if rate is None:
            return
        now = time.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + 1.0 / rate
        await asyncio.sleep(start - now)


class _NoCookies(CookieJar):
    """A jar that stays empty. A service's cookies would go to other services of its host, and fill their requests."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Leave the cookies of a reply alone."""


def _client(limits: httpx.Limits, is_direct: bool = False) -> httpx.AsyncClient:
    """Return an HTTP client without timeouts of its own, since each attempt has a limit as a whole."""
    # With a transport of its own, httpx takes no proxy from the environment.
    transport = httpx.AsyncHTTPTransport(limits=limits) if is_direct else None
    return httpx.AsyncClient(timeout=None, limits=limits, transport=transport, cookies=_NoCookies())


def check_endpoint(endpoint: Endpoint) -> None:
    """Ask a scoring service or judge for a reply, to find errors before anything expensive starts.

    Raises ConfigError when the service cannot be reached, or replies with a status that is neither 2xx nor one after
    which a run tries again because the service is busy.
    """
    name = shown_url(endpoint.name)
    headers = {**services.headers(endpoint), **PLAIN}
    if endpoint.is_judge:
        method, url, body = "GET", services.judge_url(endpoint, "models"), None
    else:
        method, url, body = "POST", endpoint.url, services.service_request({}, (), ())
    try:
        with ThreadPoolExecutor(1) as thread:
            status = thread.submit(asyncio.run, _status(method, url, body, headers)).result()
    except TimeoutError as error:
        raise ConfigError(
            f"endpoint {name}: {shown_url(url)} {LATE} {REACH_S:g} s; start the service, or set its address"
        ) from error
    except httpx.HTTPError as error:
        raise ConfigError(
            f"endpoint {name}: {shown_url(url)} cannot be reached ({type(error).__name__}: {error}); start the "
            "service, or set its address"
        ) from error
    if status in BUSY:
        log.warning("endpoint %s: %s is busy (status %d)", name, shown_url(url), status)
    elif status in (401, 403):
        raise ConfigError(
            f"endpoint {name}: {shown_url(url)} refuses with status {status}; set the environment variable that holds "
            "its key: rewards.services.endpoints=[{api_key_variable: NAME, …}]"
        )
    elif not httpx.codes.is_success(status):
        raise ConfigError(
            f"endpoint {name}: {shown_url(url)} replies with status {status} where 2xx is expected; set the address of "
            "the service, or of a judge's API (https://HOST/v1)"
        )


async def _status(method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> int:
    """Return the status of a reply. Raises TimeoutError when its header has not ended after `REACH_S`."""
    async with (
        asyncio.timeout(REACH_S),
        _client(httpx.Limits(), is_local(url)) as client,
        client.stream(method, url, json=body, headers=headers) as answer,
    ):
        return answer.status_code


def is_local(url: str) -> bool:
    """Return whether an address is on this machine, where no proxy is asked."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        # The resolver also takes 127.1 and 2130706433 for 127.0.0.1.
        address = ip_address(host if ":" in host else socket.inet_aton(host))
    except (OSError, ValueError):
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def _seconds_to_wait(response: httpx.Response) -> float:
    """Return the seconds that a service asks to wait before another attempt, or 0 where it does not say."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", "0")))  # 0 where it is no number, too
    except ValueError:  # the header holds a date
        return 0.0
