"""Environments that answer a model turn by turn, and the killable processes in which they run."""
