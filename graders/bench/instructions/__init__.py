"""Comparison of our verdicts on instructions with those of the benchmarks' own checkers."""
