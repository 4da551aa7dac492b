"""BroRL: reinforcement learning for language models with the rollout size as the scaling axis."""

__version__ = "0.2.0"
