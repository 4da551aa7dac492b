"""The driver's side: all ranks as one policy, and who of them stands still. Imports neither torch nor megatron."""
