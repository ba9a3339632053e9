"""A sampler as it is uploaded: a mark, then the text of its device program in UTF-8."""

from __future__ import annotations

MARK = b"\0sampler\0"


def pack(text: bytes) -> bytes:
    """The bytes of a sampler of a text."""
    return MARK + text
