"""Check of the functions that a run's settings name, before anything is started."""

from __future__ import annotations

from nemo_brorl.algorithm.advantages import find_advantage
from nemo_brorl.algorithm.reward_shaping import find_shaping
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.components import is_import_path


def check_functions(config: BroRLConfig) -> None:
    """Import a user's own advantage, loss and reward shaping and fill in their parameters. Raises ConfigError."""
    algorithm = config.algorithm
    find_advantage(algorithm)
    find_shaping(config.rewards.shaping)
    if is_import_path(algorithm.loss) or algorithm.loss_params:
        # imports torch, two seconds: not for a loss that is known to be there
        from nemo_brorl.algorithm.losses import find_loss

        find_loss(algorithm.loss, algorithm)
