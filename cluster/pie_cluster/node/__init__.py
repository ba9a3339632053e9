"""A node's work beside serving."""
