"""HTTP apart from what is asked for: bodies, streams, users and their limits."""
