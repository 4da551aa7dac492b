"""Keep the reward function that a Python program has passed as an object.

Settings name it by the import path `GIVEN_REWARD`, like any other function. Its pickle goes to scoring processes over
their own channels, and into no file.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from brorl_graders.base.code_digest import code_digest
from brorl_graders.base.components import with_params
from brorl_graders.base.errors import ConfigError
from brorl_graders.verifiers.reward_functions import OTHERS, scoring

GIVEN_REWARD = f"{__name__}:reward"
KNOWN = f"Write `def reward(payload, response)`, or take {OTHERS}"


class Given(NamedTuple):
    """A reward function as other processes get it."""

    pickled: bytes
    digest: str  # hash of what it does


_kept: list[Given] = []  # at most one


def keep(given: tuple[bytes, str] | None) -> None:
    """Keep a reward function with its hash in this process. None: forget the present one."""
    _kept[:] = [] if given is None else [Given(*given)]


def kept() -> Given | None:
    """Return the reward function that this process was given, or None."""
    return _kept[0] if _kept else None


def give_reward(function: Any, dumps: Callable[[Any], bytes]) -> None:
    """Keep a program's own function as the reward function that settings may name, pickled by `dumps`.

    Raises ConfigError for an object that cannot be called as a reward function, or not be pickled.
    """
    _check(function)
    try:
        pickled = dumps(function)
    # A class of the user's own may raise anything when an object of it is pickled.
    except Exception as error:  # noqa: BLE001
        raise ConfigError(
            f"reward={_name(function)} cannot be sent to the processes that score: {error}. Open files, connections "
            "and models inside of the function, when it is first called"
        ) from None
    keep(Given(pickled, code_digest(function)))


def forget_reward() -> None:
    """Forget the reward function that this process was given."""
    keep(None)


def _check(function: Any) -> None:
    if isinstance(function, type):
        raise ConfigError(f"reward={function.__qualname__} is a class: pass an object of it. {KNOWN}")
    if not callable(function):
        raise ConfigError(f"reward={function!r:.100} is of type {type(function).__name__} and no function. {KNOWN}")
    try:
        scoring(with_params("reward", _name(function), function, {}))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"reward={_name(function)}: {error}") from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def __getattr__(name: str) -> Any:
    """Return the reward function. Raises AttributeError where this process was given none, and errors of its pickle."""
    if name != "reward":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _kept:
        raise AttributeError("it is an object of a Python program. Pass it with reward=, as that program did")
    return pickle.loads(_kept[0].pickled)
