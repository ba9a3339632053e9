"""Reading of checkpoints: config.json, tensors; and the embedded ones."""
