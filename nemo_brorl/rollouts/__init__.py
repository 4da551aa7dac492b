"""Rollouts: how groups are cut into requests, placed on engines, and put together again; the schedule over training."""
