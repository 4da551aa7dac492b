"""Check the functions that settings name for the algorithm, before anything expensive starts."""

from __future__ import annotations

from brorl_graders.base.components import is_import_path

from nemo_brorl.algorithm.advantages import find_advantage
from nemo_brorl.algorithm.shaping import find_shaping
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.rewards import ShapingConfig


def check_functions(algorithm: AlgorithmConfig, shaping: ShapingConfig) -> None:
    """Import a user's own functions for advantage, loss and reward shaping, and fill in their parameters.

    Raises ConfigError for a function that cannot be imported or a parameter that the function does not have.
    """
    find_advantage(algorithm)
    find_shaping(shaping)
    if is_import_path(algorithm.loss) or algorithm.own_loss_params:
        # The import takes two seconds because of torch. A built-in loss without parameters needs no check.
        from nemo_brorl.algorithm.losses import find_loss

        find_loss(algorithm.loss, algorithm)
