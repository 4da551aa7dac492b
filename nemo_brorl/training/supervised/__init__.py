"""Supervised fine-tuning on given answers, with the policy, packing and checkpoints of the training loop."""
