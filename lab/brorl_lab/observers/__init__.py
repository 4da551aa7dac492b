"""Observers of a training run that a user can add."""
