"""Reads what checkpoints hold: config.json, tensors; and the embedded ones."""
