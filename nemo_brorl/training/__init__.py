"""The training loop, its checkpoints, the parity gate, and the small base model."""
