"""The training loop, its checkpoints, the parity gate, the rollout store, and supervised fine-tuning."""
