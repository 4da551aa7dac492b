"""The learning rate over training."""

from nemo_brorl.config.schema import OptimConfig


def learning_rate(optim: OptimConfig, step: int) -> float:
    """Of step 1, 2, …: linear warm-up over `warmup_steps`, then constant (as in ProRLv2 and BroRL)."""
    return optim.lr * min(1.0, step / (optim.warmup_steps + 1)) if optim.warmup_steps else optim.lr
