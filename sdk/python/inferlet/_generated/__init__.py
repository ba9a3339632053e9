"""Modules that `python -m codegen` makes, which git does not have."""
