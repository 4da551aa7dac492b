"""The verifier of instructions that can be checked (IFEval)."""
