"""A process of its own, to which clients connect."""
