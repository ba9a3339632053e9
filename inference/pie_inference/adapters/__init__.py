"""Adapters: small changes of a model's weights that each sequence may have, or not."""
