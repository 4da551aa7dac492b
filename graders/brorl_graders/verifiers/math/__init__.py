"""Verifier of mathematical answers."""
