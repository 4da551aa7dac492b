"""The exception tree: what a user did wrong is a `BroRLError`; everything else is our own bug and stays a traceback."""

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


class ModelError(BroRLError, ValueError):
    """A model folder is missing, incomplete, or its tokenizer does not fit."""


class DataError(BroRLError, ValueError):
    """A prompt source is missing, empty, or holds rows that cannot be used."""


class CheckpointError(BroRLError, RuntimeError):
    """A run folder or checkpoint cannot be used."""


class ResourceError(BroRLError, RuntimeError):
    """The machine lacks something the run needs: memory, a port, a device, disk space."""


class RayLostError(ResourceError):
    """Ray did not start in time, or one of its own processes is gone."""

    exit_code = LOST


class ParityError(BroRLError, RuntimeError):
    """Hugging Face, Megatron and vLLM disagree about log-probabilities by more than the bound."""


class WeightSyncError(BroRLError, RuntimeError):
    """Weights did not reach an engine whole."""

    exit_code = LOST


class ReceiverLostError(WeightSyncError):
    """An engine was lost, or too late, in a publication that needs all of them; it may be tried again with others in
    their places."""


class GenerationError(BroRLError, RuntimeError):
    """An engine failed and could not be brought back."""

    exit_code = LOST


class ServiceError(BroRLError, RuntimeError):
    """A verifier on the other side of a network did not answer, or answered what it must not."""

    exit_code = LOST


class StarvationError(BroRLError, RuntimeError):
    """Dynamic sampling found too few informative groups."""


class StallError(BroRLError, RuntimeError):
    """Nothing has moved for longer than trainer.stall_timeout_s."""

    exit_code = LOST


class TrainingError(BroRLError, RuntimeError):
    """Training cannot go on: too many non-finite updates."""


class RankLostError(TrainingError):
    """A policy rank is gone, or its node."""

    exit_code = LOST
