"""Recognition of watermarked text, without the model.

`z_score` finds what `samplers.watermark` makes likelier (Kirchenbauer et al., A
Watermark for Large Language Models, 2023), `gumbel_score` and `synthid_score` what the programs
`samplers.gumbel_watermark` and `samplers.synthid` have chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 2**64 - 1


def is_green(before: int, token: int, *, key: int = 0, share: float = 0.5) -> bool:
    """True if a hash of the key and the token before favours a token."""
    return _hash(_hash(key, before), token) >> 40 < share * 2**24


def z_score(tokens: Sequence[int], *, key: int = 0, share: float = 0.5) -> float:
    """Standard deviations by which favoured tokens are more than chance makes of the `share`."""
    pairs = list(pairwise(tokens))
    green = sum(is_green(*pair, key=key, share=share) for pair in pairs)
    return (green - share * len(pairs)) / math.sqrt(len(pairs) * share * (1 - share))


def gumbel_score(tokens: Sequence[int], *, key: int) -> float:
    """Standard deviations by which the tokens' shares are above chance (Aaronson and Kirchner)."""
    shares = [((word >> 40) + 0.5) * 2.0**-24 for word in _words(tokens, key, 3)]
    return (sum(-math.log1p(-share) for share in shares) - len(shares)) / math.sqrt(len(shares))


def synthid_score(tokens: Sequence[int], *, key: int) -> float:
    """Standard deviations by which the tokens have won more of 30 rounds than by chance."""
    won = [(word & (1 << 30) - 1).bit_count() for word in _words(tokens, key, 4)]
    return (sum(won) - 15 * len(won)) / math.sqrt(7.5 * len(won))


def _words(tokens: Sequence[int], key: int, before: int) -> list[int]:
    """The hash of each token that has so many before it, with those and a key."""
    found = []
    for i in range(before, len(tokens)):
        start = key
        for token in tokens[i - before : i]:
            start = _hash(start, token)
        found.append(_hash(start, tokens[i]))
    return found


def _hash(start: int, number: int) -> int:
    """A word of SplitMix64, as the server draws it."""
    word = start + (number + 1) * _GAMMA & _WORD
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31
