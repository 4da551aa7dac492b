"""The state of a rank: optimizer, reference, offload, checkpoints."""
