"""What graders are told: whom to ask over a network and how, and what programs may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

SCORE_LINE = r"(?i)score\s*[:=]\s*\**\s*(-?\d+(?:\.\d+)?)"
SHARE_OF_TESTS = 0.8  # share of a response's deadline for its tests: what remains is for the rest of the verifier


@dataclass(frozen=True)
class Endpoint:
    """A scoring service, or a language model that judges, with how its replies are read (docs/verifiers.md)."""

    name: str
    url: str  # of a service, or base of a judge's OpenAI-compatible API: https://HOST/v1
    model: str | None = None  # language model that judges; None: a scoring service
    api_key_variable: str | None = None  # environment variable with the key, sent to this address alone
    sees: str = "shown"  # what is sent of a response: shown, response, answer
    range: Sequence[float] = (0.0, 1.0)  # lowest and highest score; mapped to 0 and 1
    threshold: float | None = None  # score from which on it is 1, else 0; None: as it is
    template: str | None = None  # request to a judge; None: right or wrong
    score_pattern: str = SCORE_LINE  # regular expression with one group, the score; the last match counts
    score_key: str | None = None  # field of the last JSON object in a judge's reply, in place of score_pattern
    temperature: float = 0.0  # of a judge
    max_tokens: int = 256  # of a judge's reply
    request: Mapping[str, Any] = field(default_factory=dict)  # further fields of a judge's request

    @property
    def is_judge(self) -> bool:
        """True for a language model, False for a scoring service."""
        return self.model is not None


@dataclass(frozen=True)
class ServiceLimits:
    """How services are asked. Numbers of requests are of one scoring worker."""

    concurrency: int = 16  # requests at a time
    requests_per_s: float | None = None  # requests begun per second; None: no limit
    batch_size: int = 64  # responses of a request; a judge gets one
    request_timeout_s: float = 60.0  # of one attempt
    deadline_s: float = 300.0  # of all attempts for a request
    max_attempts: int = 6  # for a request
    # Longest wait before the second attempt; it doubles up to 30 s, and chance decides within it.
    backoff_s: float = 0.5
    on_failure: str = "stop"  # when attempts are used up: stop, or fail: the response counts as failed, with reward 0
    cache_size: int = 2**18  # answers that a worker remembers
    record: bool = True  # keep answers in a folder: a run that is started again asks no question twice
    replay: str | None = None  # folder whose recorded answers are used; nothing is asked then


@dataclass(frozen=True)
class CodeLimits:
    """What the programs that the verifier `code` runs may use (docs/sandbox.md)."""

    test_timeout_s: float = 4.0  # of one test
    memory_mib: int = 512  # of address space of each process
    scratch_mib: int = 16  # of all files of a test together
    output_kib: int = 1024  # that a test may print
    max_processes: int = 8  # of a test, threads counted as well
    max_open_files: int = 64  # of each process
    preload: Sequence[str] = ()  # modules that programs find imported
    readable: Sequence[str] = ()  # folders that programs may read, beside Python and the system's libraries
    allow_unsandboxed: bool = False  # run programs where the machine gives no sandbox


def is_address(name: str) -> bool:
    """Return whether a verifier's name is the address of a service."""
    return name.startswith(("http://", "https://"))


def wrong_address(url: str) -> str | None:
    """Say what is wrong with an address; None: nothing."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url!r} is no address; write http://HOST:PORT/PATH or https://…"
    if parts.username or parts.password:
        return (
            f"the address of {parts.hostname} holds a name or a password; write them into a variable of the "
            "environment and api_key_variable: NAME"
        )
    return None
