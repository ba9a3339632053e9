"""Constrained decoding: the trait `grammar`, compilation, and one walk through a grammar."""
