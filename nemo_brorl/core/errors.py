"""The errors of the backend, a tree with those of the graders: a `BroRLError` is what a user did wrong."""

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
    "WeightSyncError",
]


class ModelError(BroRLError, ValueError):
    """A model folder is missing, incomplete, or its tokenizer does not fit."""


class CheckpointError(BroRLError, RuntimeError):
    """A run folder or checkpoint cannot be used."""


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
