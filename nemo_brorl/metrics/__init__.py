"""Metrics: pure functions from what a stage produced to a flat dict of `group/name`."""
