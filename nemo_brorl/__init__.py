"""BroRL: reinforcement learning for language models with hundreds of rollouts for each prompt."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_brorl.commands.session import Session, train

__version__ = "0.2.0"
__all__ = ["Session", "train"]


def __getattr__(name: str) -> Any:
    """Import what trains from a program when it is first used: most commands import this package for its settings."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("nemo_brorl.commands.session"), name)
