"""Clients of others against the gateway: one script each, as their users would write it."""
