"""Recognition of watermarked text: what `DeviceSampler(watermark_bias=...)` makes likelier.

The detector needs no model. Kirchenbauer et al., A Watermark for Large Language Models, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 2**64 - 1


def is_green(before: int, token: int, *, key: int = 0, share: float = 0.5) -> bool:
    """Whether a hash of the key and the token before favours a token."""
    return _hash(_hash(key, before), token) >> 40 < share * 2**24


def z_score(tokens: Sequence[int], *, key: int = 0, share: float = 0.5) -> float:
    """Standard deviations by which favoured tokens are more than chance makes of the `share`."""
    pairs = list(pairwise(tokens))
    green = sum(is_green(*pair, key=key, share=share) for pair in pairs)
    return (green - share * len(pairs)) / math.sqrt(len(pairs) * share * (1 - share))


def _hash(start: int, number: int) -> int:
    """A word of SplitMix64, as the server draws it."""
    word = start + (number + 1) * _GAMMA & _WORD
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31
