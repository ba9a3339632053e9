"""Errors of a worker; their texts say how the server's user can mend them."""

from __future__ import annotations


class LoadError(Exception):
    """A model cannot be served; the text says what is wrong, where, and how to mend it."""


class BadBatch(ValueError):
    """A batch names things that do not exist; the text says which."""
