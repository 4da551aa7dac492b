"""Verdicts on instructions beside those of the benchmarks' own checkers."""
