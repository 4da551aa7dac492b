"""Scoring of responses: verifiers and environments in worker processes, under deadlines."""
