"""The inference worker: models, KV cache, attention, and a handler for each kind of command."""
