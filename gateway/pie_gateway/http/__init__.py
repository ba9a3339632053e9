"""HTTP apart from what is asked for: bodies, streams, who asks, and how much."""
