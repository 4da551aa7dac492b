"""Explain why and when a larger N helps: BroRL's mass balance, the value of N in expectation, and its simulator.

Needs numpy and scipy only.
"""
