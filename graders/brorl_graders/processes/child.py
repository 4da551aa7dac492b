"""The child process that runs a verifier, forked by `fork_server.py` with the verifier's libraries loaded.

It serves one parent over a channel, is killed at a deadline, and exits with its parent, also in the middle of a score.
A request is `(verifier, payload, texts, number)`. Each text gets a reply as soon as it is scored, as JSON: `[number,
score, reason, null, false]`, or `[number, 0.0, "", error, is_own]` when the verifier raised. The first text's number is
the request's, which is random, and the next text's is one higher. A score of null says that this process ends with its
error. The parent unpickles no reply, so a response that takes this process over cannot run code in the parent.

A verifier that needs none of these has no network, no files but libraries, and no other process. Then a response that
takes the process over can change nothing but the scores that it returns. Landlock keeps files, seccomp keeps the
network, other processes and new ones. Where the kernel lacks one of the two, the other works alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from brorl_graders.base.components import own_line
from brorl_graders.base.errors import BroRLError
from brorl_graders.base.extras import to_install
from brorl_graders.base.foreign import read_json
from brorl_graders.base.names import forget_all_but_environments
from brorl_graders.base.payload import Score, score_and_reason
from brorl_graders.base.verdicts import LARGEST_SCORE
from brorl_graders.processes.channel import ChildReplyError, receive_request, send_reply
from brorl_graders.sandbox import linux, program_process, seccomp
from brorl_graders.sandbox.confine import readable_paths
from brorl_graders.verifiers.registry import score_of

PACKAGE = Path(__file__).parents[1]
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
FIRST_LANDLOCK = "Linux 5.13"

MEMORY_LIMIT = 8 * 2**30  # bytes of address space, so that an answer like 9**9**9 fails alone
PR_SET_PDEATHSIG = 1
MAX_REPLY = 2**16  # largest reply, in bytes
MAX_WORDS = 2000  # longest reason, in characters
MAX_ERROR = 240  # longest text of an exception, in characters; its line number follows

# Exceptions of a library for an odd answer. Any other, MemoryError too, ends this process once it is named. Either way
# one response fails.
VERIFIER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

# Exceptions that say that a sandbox, a file or a library is missing.
OF_MACHINE = (BroRLError, ImportError, OSError)

Serve = Callable[[socket.socket], None]  # answers requests until the other end is closed


class KernelIsolation(NamedTuple):
    """The isolation of child processes that this kernel offers, measured once for all children of a fork server."""

    rules: int | None  # file descriptor of Landlock's rules; None: no Landlock
    can_filter: bool  # whether the kernel takes seccomp filters

    def gaps(self) -> list[str]:
        """Return what an isolated child process could still do, one text each. The list is empty for full isolation."""
        gaps = []
        if self.rules is None:
            gaps.append(f"read this user's files, and write them (needs Landlock, {FIRST_LANDLOCK})")
        if not self.can_filter:
            gaps.append("use the network and start processes (needs seccomp)")
        return gaps


def measure_isolation() -> KernelIsolation:
    """Find out which isolation the kernel offers. Forks once, so the caller must have a single thread."""
    interface = linux.landlock_version()
    rules = None
    if interface:
        rules = linux.landlock_ruleset(_library_folders(), [], interface)
    return KernelIsolation(rules, program_process.can_filter())


def isolate_process(isolation: KernelIsolation) -> None:
    """Isolate this process for good, and clear its environment variables, which may hold keys."""
    forget_all_but_environments()
    os.chdir("/")
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if isolation.rules is not None:
        linux.landlock_restrict(isolation.rules)
    if isolation.can_filter:
        code = seccomp.build_filter(True, os.getpid(), guard_files=True, guard_starts=True)
        assert code is not None, "the filter was tried"
        seccomp.install_filter(code)


def _library_folders() -> list[str]:
    """Return the folders that libraries read when they are imported: Python's, those of packages, and this package."""
    folders = [str(PACKAGE)]
    for folder in sys.path:
        if Path(folder).name in LIBRARY_FOLDERS:
            folders.append(folder)
    return readable_paths(folders)


class ChildReply(NamedTuple):
    """A child process's reply for one text: the score and its reason, or an error."""

    number: int  # number of the text
    score: float | None  # None: the process ends with its error
    reason: str  # the verifier's comment on the score; "": none
    error: str | None  # why the verifier failed; None: no failure
    is_own: bool = False  # True: whatever the response is, the verifier or the machine is to blame


def run_child(
    end: socket.socket,
    parent: int,
    isolation: KernelIsolation | None,
    serve: Serve,
) -> None:
    """Run a forked child in a process group of its own until its parent has exited.

    Processes that a verifier starts belong to the group and are killed with it. With `isolation` the child isolates
    itself first. Without it, the child keeps the rights of its user. `serve` answers the parent's requests.
    """
    os.setpgid(0, 0)
    die_with_parent()
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    if isolation is not None:
        isolate_process(isolation)
    serve(end)


def serve(end: socket.socket) -> None:
    """Score the responses that the parent process sends, until the parent closes its end of the socket."""
    while True:
        try:
            verifier, packed, texts, first = receive_request(end)
        except EOFError:
            return
        payload = pickle.loads(packed)
        score = score_of(verifier)
        for number, text in enumerate(texts, first):
            _reply_to(end, number, score, payload, text)


def read_reply(raw: bytes) -> ChildReply:
    """Read and check a reply of a child process that scores responses.

    A response may have taken the child over. Raises ChildReplyError when the reply is no score.
    """
    try:
        reply = ChildReply(*read_json(raw, most_bytes=MAX_REPLY))
    except (ValueError, TypeError) as reason:
        raise ChildReplyError("its reply is no score") from reason
    is_score = type(reply.score) is float and abs(reply.score) <= LARGEST_SCORE
    ends = reply.score is None and reply.error is not None
    is_typed = type(reply.reason) is str and isinstance(reply.error, str | None) and type(reply.is_own) is bool
    if not (is_score or ends) or not is_typed:
        raise ChildReplyError("its reply is no score")
    return reply._replace(reason=reply.reason[:MAX_WORDS], error=reply.error and reply.error[:MAX_WORDS])


def die_with_parent() -> None:
    """Have Linux kill this process when its parent exits, even while a verifier hangs in C code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _reply_to(
    end: socket.socket,
    number: int,
    score: Score,
    payload: dict[str, object],
    text: str,
) -> None:
    """Score a text, and send the reply. Raises SystemExit after an exception that ends this process."""
    try:
        value, reason = score_and_reason(score(payload, text))
        reply = ChildReply(number, value, reason[:MAX_WORDS], None)
        # A number that is none is not below the bound, either.
        if not abs(value) <= LARGEST_SCORE:
            reply = ChildReply(number, 0.0, "", f"the score is {value}", True)
    except VERIFIER_ERRORS as error:
        reply = ChildReply(number, 0.0, "", _describe(error), isinstance(error, OF_MACHINE))
    except BaseException as error:
        _send(end, ChildReply(number, None, "", _describe(error), isinstance(error, OF_MACHINE)))
        raise SystemExit(1) from error
    _send(end, reply)


def _send(end: socket.socket, reply: ChildReply) -> None:
    send_reply(end, json.dumps(reply).encode())


def _describe(error: BaseException) -> str:
    """Return the name of an exception with its text, unless the text cannot be made, and the line that raised it."""
    words, line = type(error).__name__, own_line(error)
    with suppress(Exception):
        words = f"{words}: {error}{to_install(error)}"[:MAX_ERROR] if str(error) else words
    return f"{words} ({line})" if line else words
