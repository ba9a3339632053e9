"""Beginnings of prompts, by which launches are placed near what is cached of them.

A prompt is told by hashes of its beginnings, each twice as long as the one before: launches whose
prompts have a beginning in common have the hashes in common that are not longer.
"""

from __future__ import annotations

from hashlib import blake2b

FIRST = 512  # characters of the shortest beginning
MOST_PREFIXES = 8
FIRST_TOKENS = FIRST // 4  # that it is about


def prefix_hashes(prompt: str) -> list[str]:
    """Hashes of a text's beginnings, the shortest first; none of a text that is shorter."""
    hashed, at = blake2b(digest_size=16), 0
    hashes: list[str] = []
    end = FIRST
    while end <= len(prompt) and len(hashes) < MOST_PREFIXES:
        hashed.update(prompt[at:end].encode("utf-8", "surrogatepass"))
        hashes.append(hashed.hexdigest())
        at, end = end, 2 * end
    return hashes
