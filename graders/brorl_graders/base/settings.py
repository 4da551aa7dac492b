"""Settings of the graders: scoring services and judges, how they are asked, and limits of programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# A whole line. Its parts have no character in common, so that it matches in linear time.
SCORE_LINE = r"(?ai)^[*_#`\s]*(?:final )?score[*_`\s]*[:=][*_`\s]*(-?\d+(?:\.\d+)?)[*_`.\s]*$"
SHARE_OF_TESTS = 0.8  # fraction of a response's deadline for its tests; the rest is for the verifier itself


@dataclass(frozen=True)
class Endpoint:
    """A scoring service or a judging language model, and the format of its replies (docs/howto/judges.md)."""

    name: str
    url: str  # address of a service, or base URL of a judge's OpenAI-compatible API: https://HOST/v1
    model: str | None = None  # language model that judges; None: a scoring service
    api_key_variable: str | None = None  # environment variable with the key, sent to this address alone
    sees: str = "shown"  # part of a response that is sent: shown, response, answer
    range: Sequence[float] = (0.0, 1.0)  # lowest and highest score; mapped to 0 and 1
    threshold: float | None = None  # scores from here on count as 1, lower ones as 0; None: scores are kept
    template: str | None = None  # text of a request to a judge; None: it asks whether the response is right or wrong
    score_pattern: str = SCORE_LINE  # regular expression with one group, the score, in a judge's last line
    score_key: str | None = None  # field of the last outermost JSON object of a reply, in place of score_pattern
    temperature: float = 0.0  # sampling temperature of a judge
    max_tokens: int = 256  # longest reply of a judge, in tokens
    request: Mapping[str, Any] = field(default_factory=dict)  # more fields of a judge's request

    @property
    def is_judge(self) -> bool:
        """True for a language model that judges, False for a scoring service."""
        return self.model is not None


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of requests to services and judges. Numbers of requests count for one scoring worker."""

    concurrency: int = 16  # concurrent requests
    requests_per_s: float | None = None  # requests started per second; None: no limit
    batch_size: int = 64  # responses in one request to a service; a judge gets one
    request_timeout_s: float = 60.0  # seconds for one attempt
    deadline_s: float = 300.0  # seconds for all attempts of a request
    max_attempts: int = 6  # attempts for one request
    # Longest wait in seconds before the second attempt. It doubles up to 30 s, and the wait is random below it.
    backoff_s: float = 0.5
    on_failure: str = "stop"  # after the last attempt: stop the run, or fail the response with reward 0
    cache_size: int = 2**18  # answers in the memory of one worker
    record: bool = True  # answers are stored in a folder, so that a resumed run asks no question twice
    replay: str | None = None  # folder with recorded answers; then no service is asked


@dataclass(frozen=True)
class CodeLimits:
    """Limits of the programs that the verifier `code` runs (docs/reference/sandbox.md)."""

    test_timeout_s: float = 4.0  # seconds for one test
    memory_mib: int = 512  # address space of each process
    scratch_mib: int = 16  # size of all files of a test together
    output_kib: int = 1024  # size of what a test may print
    max_processes: int = 8  # processes and threads of a test
    max_open_files: int = 64  # open files of each process
    preload: Sequence[str] = ()  # modules that are imported before a program runs
    readable: Sequence[str] = ()  # folders that programs may read, apart from Python and system libraries
    allow_unsandboxed: bool = False  # programs run even where the machine has no sandbox


def is_address(name: str) -> bool:
    """Return whether a verifier's name is the address of a scoring service."""
    return name.startswith(("http://", "https://"))


def wrong_address(url: str) -> str | None:
    """Say what is wrong with the address of a service or judge, or return None when it can be used."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url!r} is no address; set one like http://HOST:PORT/PATH or https://…"
    if parts.username or parts.password:
        return (
            f"the address of {parts.hostname} holds a name or a password; put them into an environment "
            "variable and set api_key_variable: NAME"
        )
    return None
