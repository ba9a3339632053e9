"""Strangers' texts, as they are shown: programs' messages and logs, names, errors, files' texts.

A terminal acts on control characters: they clear it, rename its window, or have it type. And a
reader is misled by characters that turn the direction of a line or take no room.
"""

from __future__ import annotations

import json
import re

# C0 and C1; what is invisible or turns a line, but for the joiners of scripts and emoji; surrogates
# without their other half; tags.
HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-"
    "\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_ONE_LINE = re.compile(f"[{HIDDEN}]")
_LINES = re.compile(rf"(?![\t\n])[{HIDDEN}]")


def printable(text: object, most: int | None = 200, *, lines: bool = False) -> str:
    """A text with escapes in the place of control characters, as JSON writes them. With `lines`, it
    may have several, and tabs. What is cut off behind `most` characters is shown by `…`.
    """
    found = text if isinstance(text, str) else str(text)
    if most is not None and len(found) > most:
        found = f"{found[:most]}…"
    return (_LINES if lines else _ONE_LINE).sub(lambda match: json.dumps(match[0])[1:-1], found)


def quoted(text: object, most: int = 80) -> str:
    """A text for the middle of a sentence: printable, cut, and between quotes."""
    return f"'{printable(text, most)}'"


_ENDS = {each.encode(): f"\\u{ord(each):04x}".encode() for each in "\x85\u2028\u2029"}


def one_line(text: bytes) -> bytes:
    """JSON with escapes for the ends of lines that it leaves as they are, where `str.splitlines`
    of Python and `readline` of Node.js part a text.
    """
    for end, escape in _ENDS.items():
        text = text.replace(end, escape)
    return text
