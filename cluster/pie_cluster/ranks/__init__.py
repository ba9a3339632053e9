"""Ranks of one worker on several machines."""
