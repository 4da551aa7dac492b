"""A verifier whose responses take its process over, and write to the process's owner what they like."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from typing import Any

REPLY = "graders.tests.support.hostile_replies:reply"


def reply(payload: Mapping[str, Any], response: str) -> float:
    """Run the function that the first word of a response names with the rest, or return the rest as score."""
    word, _, rest = response.partition(" ")
    act = ACTS.get(word)
    return float(rest) if act is None else act(rest)


def write(rest: str) -> float:
    """Write the text to the owner as it stands."""
    os.write(_socket_to_owner(), rest.encode())
    return 0.0


def write_and_hang(rest: str) -> float:
    """Write the text, and score nothing."""
    write(rest)
    time.sleep(3600)
    return 0.0


def forge(rest: str, score: float = 1.0) -> float:
    """Send a score for the text that is being scored, in front of its own reply."""
    frame = sys._getframe()
    while "first" not in frame.f_locals:
        assert frame.f_back is not None, "`serve` is among the callers"
        frame = frame.f_back
    return write("." + json.dumps([frame.f_locals["number"], score, "", None, False]))


def forge_whole(rest: str) -> float:
    """Send this score in place of its own reply."""
    forge(rest, float(rest))
    os._exit(0)


def flood(rest: str) -> float:
    """Write parts of a reply that does not end."""
    while True:
        write("+")


def raise_own(rest: str) -> float:
    """Raise an exception that no library has."""
    raise type(rest, (Exception,), {})("told to")


def raise_without_words(rest: str) -> float:
    """Raise an exception whose text cannot be made."""
    raise type(rest, (Exception,), {"__str__": lambda error: 1 / 0})


def leave(rest: str) -> float:
    """End the process as Python does."""
    raise SystemExit(rest)


ACTS = {
    "write": write,
    "hang": write_and_hang,
    "forge": forge,
    "whole": forge_whole,
    "flood": flood,
    "raise": raise_own,
    "speechless": raise_without_words,
    "leave": leave,
}


def _socket_to_owner() -> int:
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return descriptor
        except OSError:
            continue
    raise LookupError("this process has no socket")
