"""The verifier of programs."""
