"""The exception tree: what a user did wrong is a `BroRLError`; everything else is a bug and stays a traceback.

The backend's own errors are in `nemo_brorl.core.errors` and belong to this tree, so that one handler prints them all.
"""

from __future__ import annotations

from typing import ClassVar

USER_ERROR = 2  # exit code: the same command would fail again
# EX_UNAVAILABLE: something broke under way; the same command goes on from the last checkpoint, and may well succeed
LOST = 69


class BroRLError(Exception):
    """Base of every error with a message meant for the user. Entry points print it without a traceback and exit with
    its code."""

    exit_code: ClassVar[int] = USER_ERROR


class ConfigError(BroRLError, ValueError):
    """A setting is wrong or two settings do not fit; the message says what to write instead."""


class NotAllowedError(ConfigError):
    """Data, a stored run or a checkpoint names code or an address that no setting names."""


class DataError(BroRLError, ValueError):
    """A prompt source is missing, empty, or holds rows that cannot be used."""


class ResourceError(BroRLError, RuntimeError):
    """The machine lacks something that is needed: memory, a port, a device, disk space, a sandbox."""


class ServiceError(BroRLError, RuntimeError):
    """A verifier on the other side of a network did not answer, or answered what it must not."""

    exit_code = LOST
