"""JSON in lines that all readers end where we do."""

from __future__ import annotations

_ENDS = {each.encode(): f"\\u{ord(each):04x}".encode() for each in "\x85\u2028\u2029"}


def one_line(text: bytes) -> bytes:
    """JSON with escapes for the ends of lines that it leaves as they are, where `str.splitlines`
    of Python and `readline` of Node.js part a text.
    """
    for end, escape in _ENDS.items():
        text = text.replace(end, escape)
    return text
