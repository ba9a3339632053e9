"""Policies of placements in simulated time."""
