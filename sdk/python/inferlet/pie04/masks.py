"""Pie 0.4's masks: lengths of stretches, by turns left out and let in, beginning with left out."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence


def ranges(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The stretches that a mask lets in: from, up to."""
    at = 0
    for number, length in enumerate(mask):
        if number % 2 and length:
            yield at, at + length
        at += length


def bits(mask: Sequence[int]) -> int:
    """A mask as a number: bit `t` lets token `t` in."""
    return sum(((1 << last - first) - 1) << first for first, last in ranges(mask))


def of_words(words: Sequence[int]) -> int:
    """The same of 32-bit words, as `Matcher.mask` has them."""
    return int.from_bytes(array("I", words).tobytes(), "little")


def words(mask: int, count: int) -> list[int]:
    """32-bit words of a number, for `count` tokens."""
    size = -(-count // 32)
    return array("I", (mask & (1 << count) - 1).to_bytes(4 * size, "little")).tolist()


def lengths(mask: int, count: int) -> list[int]:
    """A number as lengths, for `count` tokens."""
    digits = f"{mask & (1 << count) - 1:0{count}b}"[::-1]
    found = [len(stretch[0]) for stretch in re.finditer("0+|1+", digits)]
    return [0, *found] if digits[:1] == "1" else found
