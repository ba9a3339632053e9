"""Choosing tokens where the model runs: parameters, randomness, the choice itself."""
