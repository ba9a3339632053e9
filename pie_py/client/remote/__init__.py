"""Functions and classes of the caller that run in an inferlet."""
