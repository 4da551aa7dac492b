"""Child processes that run verifiers and can be killed at a deadline."""
