"""Run verifiers in processes that can be ended at a deadline."""
