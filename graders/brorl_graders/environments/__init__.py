"""Environments: what answers a model turn by turn, and the processes in which it may hang or crash."""
