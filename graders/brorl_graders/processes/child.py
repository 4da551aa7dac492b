"""The process that runs a verifier, made to be killed; forked by `fork_server.py`, which has its libraries loaded.

It serves one parent over a socket. Request: `(verifier, payload, texts)`. Replies, one for each text as soon as it is
scored, as JSON: `[score, reason, null]`, or `[0.0, "", error]` when the verifier raised. The parent unpickles nothing
that comes from here: a response that has taken this process over must not run in the parent as well. It ends when the
parent goes away, also in the middle of a score.

Where its verifier needs none of these, walls stand around it: no network, no files beside libraries, no other process.
A response that takes such a process over reaches nothing but the score that it
returns. Landlock keeps files, seccomp keeps the network, other processes and new ones; where the kernel lacks one of
them, the other holds alone.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from brorl_graders.base.names import forget_all_but_environments
from brorl_graders.base.payload import Score, score_and_reason
from brorl_graders.sandbox import linux, program_process, seccomp
from brorl_graders.sandbox.confine import readable_paths
from brorl_graders.verifiers.registry import score_of

PACKAGE = Path(__file__).parents[1]
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
FIRST_LANDLOCK = "Linux 5.13"

MEMORY_LIMIT = 8 * 2**30  # bytes of address space: an answer like 9**9**9 costs its own reward, not the machine
PR_SET_PDEATHSIG = 1
MAX_REPLY = 2**16  # bytes
MAX_WORDS = 2000  # characters of a reason or an error

# What foreign code raises about an odd answer. Anything else, want of memory too, ends this process, and counts as a
# failure of one response as well.
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

Serve = Callable[[Connection], None]  # answers requests until the other end is closed


class Walls(NamedTuple):
    """What this kernel has to build them of; made once, for all processes that a fork server starts."""

    rules: int | None  # Landlock's, a file descriptor
    can_filter: bool  # by seccomp

    def gaps(self) -> list[str]:
        """What a process behind them could do that it must not."""
        found = []
        if self.rules is None:
            found.append(f"read this user's files, and write them (needs Landlock, {FIRST_LANDLOCK})")
        if not self.can_filter:
            found.append("use the network and start processes (needs seccomp)")
        return found


def measure_walls() -> Walls:
    """Try what the kernel has. Forks once: the caller has a single thread."""
    interface = linux.landlock_version()
    rules = None
    if interface:
        rules = linux.landlock_ruleset(_library_folders(), [], interface)
    return Walls(rules, program_process.can_filter())


def enter_walls(walls: Walls) -> None:
    """Put this process behind them, for good. Its environment, which may hold keys, is emptied."""
    forget_all_but_environments()
    os.chdir("/")
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if walls.rules is not None:
        linux.landlock_restrict(walls.rules)
    if walls.can_filter:
        code = seccomp.build_filter(True, os.getpid(), guard_files=True, guard_starts=True)
        assert code is not None, "the filter was tried"
        seccomp.install_filter(code)


def _library_folders() -> list[str]:
    """Folders that a library may read as it is imported: Python's, those of packages, and ours."""
    folders = [str(PACKAGE)]
    for folder in sys.path:
        if Path(folder).name in LIBRARY_FOLDERS:
            folders.append(folder)
    return readable_paths(folders)


class ChildReply(NamedTuple):
    """What a child says of a text."""

    score: float
    reason: str  # what the verifier says of its score; "": nothing
    error: str | None  # why the verifier failed; None: it did not


class ChildReplyError(ValueError):
    """What a child said is no score."""


def run_child(
    connection: Connection,
    parent: int,
    walls: Walls | None,
    serve: Serve,
) -> None:
    """What a forked child does, in a process group of its own (what a verifier starts goes with it), until its parent
    is gone. `around`: the walls that it goes behind first; None: it may do what its user may."""
    os.setpgid(0, 0)
    die_with_parent()
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    if walls is not None:
        enter_walls(walls)
    serve(connection)


def serve(connection: Connection) -> None:
    """Answer requests until the parent closes its end."""
    while True:
        try:
            verifier, payload, texts = connection.recv()
        except EOFError:
            return
        score = score_of(verifier)
        for text in texts:
            reply = _safe_score(score, payload, text)
            connection.send_bytes(json.dumps(reply).encode())


def read_reply(connection: Connection) -> ChildReply:
    """The next reply of a child, which may be anybody's by now. Raises EOFError or OSError when it is gone,
    ChildReplyError when this is none."""
    raw = connection.recv_bytes(MAX_REPLY)
    try:
        reply = ChildReply(*json.loads(raw))
    except (ValueError, TypeError, RecursionError) as reason:
        raise ChildReplyError("its reply is no score") from reason
    is_score = type(reply.score) is float and math.isfinite(reply.score)
    if not is_score or type(reply.reason) is not str or not isinstance(reply.error, str | None):
        raise ChildReplyError("its reply is no score")
    return reply


def die_with_parent() -> None:
    """Linux sends SIGKILL when the parent ends, which also reaches a verifier that hangs in C code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _safe_score(score: Score, payload: dict[str, object], text: str) -> ChildReply:
    try:
        value, reason = score_and_reason(score(payload, text))
    except VERIFIER_ERRORS as error:
        words = f"{type(error).__name__}: {error}"
        return ChildReply(0.0, "", words[:MAX_WORDS])
    if not math.isfinite(value):
        return ChildReply(0.0, "", f"the score is {value}")
    return ChildReply(value, reason[:MAX_WORDS], None)
