"""Verifier of programs."""
