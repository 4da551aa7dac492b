"""Define the errors of the backend, in one tree with those of the graders. A `BroRLError` is a mistake of the user."""

from __future__ import annotations

from brorl_graders.base.errors import (
    LOST,
    USER_ERROR,
    BroRLError,
    ConfigError,
    DataError,
    NotAllowedError,
    ResourceError,
    ServiceError,
)

__all__ = [
    "LOST",
    "USER_ERROR",
    "BroRLError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GenerationError",
    "ModelError",
    "NotAllowedError",
    "ParityError",
    "RankLostError",
    "RayLostError",
    "ReceiverLostError",
    "ResourceError",
    "ServiceError",
    "StallError",
    "StarvationError",
    "TrainingError",
    "VerifierError",
    "WeightSyncError",
]


class ModelError(BroRLError):
    """A model folder is missing, incomplete, or its tokenizer does not fit."""


class CheckpointError(BroRLError):
    """A run folder or checkpoint cannot be used."""


class RayLostError(ResourceError):
    """Ray did not start in time, or one of its own processes has exited."""

    exit_code = LOST


class ParityError(BroRLError):
    """Hugging Face, Megatron and vLLM disagree about log-probabilities by more than the bound."""


class WeightSyncError(BroRLError):
    """A weight sync did not bring all weights to an engine."""

    exit_code = LOST


class ReceiverLostError(WeightSyncError):
    """An engine was lost, or too late, in a weight sync that needs all engines.

    The sync can be repeated once replacements have started.
    """


class GenerationError(BroRLError):
    """An engine failed and could not be restarted."""

    exit_code = LOST


class StarvationError(BroRLError):
    """Dynamic sampling found too few informative groups."""


class VerifierError(BroRLError):
    """A verifier failed on every response, so there is no reward at all."""


class StallError(BroRLError):
    """The run made no progress for longer than trainer.stall_timeout_s."""

    exit_code = LOST


class TrainingError(BroRLError):
    """Training cannot continue because of too many non-finite updates."""


class RankLostError(TrainingError):
    """A policy rank, or its node, was lost."""

    exit_code = LOST
