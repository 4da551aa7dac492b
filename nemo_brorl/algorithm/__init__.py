"""Compute advantages, losses, reward shaping and packing in plain functions without Ray, Megatron or vLLM."""
