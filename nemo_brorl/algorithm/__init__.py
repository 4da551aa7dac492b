"""The algorithm: advantages, losses, packing and theory, as plain functions without Ray, Megatron or vLLM."""
