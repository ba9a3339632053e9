"""The users' persistent keys and values."""
