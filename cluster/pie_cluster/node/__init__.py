"""What a node does beside serving."""
