"""Keep the reward function that a Python program has passed as an object.

Settings name it by the import path `GIVEN_REWARD`, like any other function. Its pickle goes to scoring processes over
their own channels, and into no file.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from brorl_graders.base.code_digest import code_digest
from brorl_graders.base.components import with_params
from brorl_graders.base.errors import ConfigError
from brorl_graders.verifiers.reward_functions import OTHERS, scoring

GIVEN_REWARD = f"{__name__}:reward"

Given = tuple[bytes, str]  # pickle, and hash of what the function does
_kept: list[Given] = []  # holds one reward function or none


def kept_reward() -> Given | None:
    """Return the reward function that this process was given, or None."""
    return _kept[0] if _kept else None


def keep_reward(given: Given | None) -> None:
    """Keep a reward function in this process. None: forget the present one."""
    _kept[:] = [] if given is None else [given]


def give_reward(function: Any, dumps: Callable[[Any], bytes]) -> None:
    """Keep a program's own function as the reward function that settings may name, pickled by `dumps`.

    Raises ConfigError for an object that cannot be called as a reward function, or not be pickled.
    """
    name = getattr(function, "__qualname__", repr(function)[:100])
    if isinstance(function, type) or not callable(function):
        kind = "a class" if isinstance(function, type) else f"of type {type(function).__name__}"
        known = f"def reward(payload, response)`, or take {OTHERS}"
        raise ConfigError(f"reward={name} is {kind} and no function. Pass an object that can be called: write `{known}")
    try:
        scoring(with_params("reward", name, function, {}))
        pickled = dumps(function)
    # A class of the user's own may raise anything when an object of it is pickled.
    except Exception as error:  # noqa: BLE001
        advice = "Open files, connections and models inside of it, when it is first called"
        words = (
            str(error) if isinstance(error, ConfigError) else f"cannot be sent to other processes: {error}. {advice}"
        )
        raise ConfigError(f"reward={name}: {words}") from None
    keep_reward((pickled, code_digest(function)))


def __getattr__(name: str) -> Any:
    """Return the reward function. Raises AttributeError where this process was given none, and errors of its pickle."""
    if name != "reward" or not _kept:
        raise AttributeError(f"{name} is no object that this process was given. Pass it again, as reward=")
    return pickle.loads(_kept[0][0])
