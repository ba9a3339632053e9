"""Keys of hints: what nodes report of their caches and exports, and launches are placed by.

A key is a hash of 63 bits, so that tables and reports are small and tell no names. Two names with
the same key cost a prefill at most, for a hint may always be wrong.
"""

from __future__ import annotations

from hashlib import blake2b


def program_key(user: str, program: str) -> int:
    """What a user has cached by a program, named by the hash of its content."""
    return _key(b"program", user, program)


def export_key(user: str, name: str) -> int:
    """Pages that a user has exported under a name."""
    return _key(b"export", user, name)


def _key(kind: bytes, user: str, name: str) -> int:
    who = user.encode("utf-8", "surrogatepass")
    # The length keeps apart what would read alike: the user "a" and the name "bc", "ab" and "c".
    text = b"%d:%b%b" % (len(who), who, name.encode("utf-8", "surrogatepass"))
    digest = blake2b(text, digest_size=8, person=kind).digest()
    return int.from_bytes(digest, "little") >> 1
