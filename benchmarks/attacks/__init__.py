"""Attacks on a server: their catalogue, and what others notice of them."""
