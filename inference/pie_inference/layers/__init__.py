"""Building blocks that model families share."""
