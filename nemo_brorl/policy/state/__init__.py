"""Hold the state of a rank: optimizer, reference, offload, checkpoints."""
