"""BroRL: reinforcement learning for language models with hundreds of rollouts for each prompt."""

__version__ = "0.2.0"
