"""The exception tree: a user's mistake is a `BroRLError`, and anything else is a bug with a traceback.

The backend's own errors are in `nemo_brorl.core.errors` and derive from `BroRLError`, so one handler prints them all.
"""

from __future__ import annotations

from typing import ClassVar

USER_ERROR = 2  # exit code of an error that the same command would meet again
# Exit code (EX_UNAVAILABLE) after a failure during the run. The same command resumes from the last checkpoint.
LOST = 69


class BroRLError(Exception):
    """Base of every error with a message for the user. Commands print it alone and exit with `exit_code`.

    None is a built-in error, too: a handler of ValueError around a parser would swallow the message, or word it anew.
    """

    exit_code: ClassVar[int] = USER_ERROR


class ConfigError(BroRLError):
    """An error in the settings: a wrong value, or two that do not fit. The message says what to set instead."""


class NotAllowedError(ConfigError):
    """An error for code or an address that data, a stored run or a checkpoint names and no setting allows."""


class DataError(BroRLError):
    """An error in the prompts: their source is missing or empty, or a row cannot be used."""


class ResourceError(BroRLError):
    """An error of the machine: memory, a port, a device, disk space or a sandbox is missing."""


class ServiceError(BroRLError):
    """An error of a scoring service or judge: it did not answer, or sent no valid reply."""

    exit_code = LOST
