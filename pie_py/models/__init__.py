"""Models that travel in packages, and how they come onto this machine."""
