"""Drive all ranks as one policy, and find ranks that are stalled. Imports neither torch nor megatron."""
