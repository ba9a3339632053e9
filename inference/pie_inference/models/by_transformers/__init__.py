"""Families without code of ours: transformers' own module, under our attention."""
