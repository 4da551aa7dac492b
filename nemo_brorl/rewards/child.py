"""The process that runs verifiers, made to be killed: `python -m nemo_brorl.rewards.child FD [PLUGIN ...]`.

It serves one parent over the socket FD. Request: `(verifier, payload, texts)`. Replies, one for each text as soon as it is
scored: `(score, None)`, or `(0.0, error)` when the verifier raised. Before the first request it says READY. A plugin is a
module that adds to `VERIFIERS`. It ends when the parent goes away, also in the middle of a score.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import resource
import signal
import sys
from multiprocessing.connection import Connection

from nemo_brorl.rewards import VERIFIERS, reasoning_gym
from nemo_brorl.rewards.payload import Score

READY = "ready"
MEMORY_LIMIT = 8 * 2**30  # bytes of address space: an answer like 9**9**9 costs its own reward, not the machine
PR_SET_PDEATHSIG = 1

# What foreign code raises about an odd answer. Anything else ends this process, and counts as a failure of one response as well.
VERIFIER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def serve(connection: Connection) -> None:
    """Answer requests until the parent closes its end."""
    connection.send(READY)
    while True:
        try:
            verifier, payload, texts = connection.recv()
        except EOFError:
            return
        for text in texts:
            connection.send(_safe_score(VERIFIERS[verifier].score, payload, text))


def _safe_score(score: Score, payload: dict[str, object], text: str) -> tuple[float, str | None]:
    try:
        value = float(score(payload, text))
    except VERIFIER_ERRORS as error:
        return 0.0, f"{type(error).__name__}: {error}"
    return (value, None) if math.isfinite(value) else (0.0, f"the score is {value}")


def _die_with_parent() -> None:
    """Linux sends SIGKILL when the parent ends, which also reaches a verifier that hangs in C code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Set limits, load libraries and plugins, serve."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    reasoning_gym.load()
    for plugin in arguments[1:]:
        importlib.import_module(plugin)
    serve(Connection(int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
