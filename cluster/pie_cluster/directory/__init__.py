"""Which nodes there are, and where launches go."""
