"""Generations with function calls: asynchronous ones, and the synchronous ways to compare with."""
