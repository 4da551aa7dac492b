"""Supervised fine-tuning: a model learns given answers, by the same policy, packing and checkpoints as the loop."""
