"""The verifier of mathematical answers."""
