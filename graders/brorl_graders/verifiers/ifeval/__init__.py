"""Verifier of instructions that can be checked by rules (IFEval and IFBench)."""
