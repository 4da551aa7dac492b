"""Stand-ins for GPU kernels, for Megatron on CPU."""
