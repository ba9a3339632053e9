"""Journals of durable instances: what the world has told them, a file each, to go on from."""
