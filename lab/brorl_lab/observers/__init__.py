"""Observers of a training run that a user may add."""
