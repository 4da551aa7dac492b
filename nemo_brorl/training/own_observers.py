"""Observers of the user's own, which the settings name (`trainer.observers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from brorl_graders.base.components import find_function, with_params

from nemo_brorl.config.trainer import ObserverConfig
from nemo_brorl.training.observers import Observer

MakeObserver = Callable[[Path], Observer]  # run folder → observer


def find_observers(settings: Sequence[ObserverConfig]) -> list[MakeObserver]:
    """Return a factory for each observer of the training loop that the settings name. Raises ConfigError."""
    factories: list[MakeObserver] = []
    for index, observer in enumerate(settings):
        where = f"trainer.observers.{index}"
        function = find_function(f"{where}.name", observer.name, {})
        factories.append(with_params(f"{where}.params", observer.name, function, observer.params))
    return factories
