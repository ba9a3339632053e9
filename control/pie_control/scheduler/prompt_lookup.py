"""Prompt lookup: what is likely to come in a text is what came after its last tokens before.

A. Saxena, Prompt Lookup Decoding, 2023. Each place of the text is found by the pair of tokens that
ends there, in constant time, and 20 bytes are kept for each token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = Sequence[int] | NDArray[np.uint32]

PAIR = 2  # the shortest match
MOST_MATCHED = 16  # tokens that are compared
MOST_PLACES = 8  # that are compared, the latest ones
_FACTOR = 2654435761  # Knuth's multiplicative hash
_NOWHERE = -1


class Found(NamedTuple):
    """Where the last tokens of a text came before."""

    end: int  # the place behind them
    matched: int  # tokens that are alike, `PAIR` to `MOST_MATCHED`


class PromptLookup:
    """A text that grows, and an index of its pairs of tokens.

    Pairs are in chains by their hashes, the latest first. The pair at the text's end is not in
    there: nothing has come after it.
    """

    def __init__(self, text: Tokens) -> None:
        tokens = np.asarray(text, np.uint32).astype(np.int64)
        self._mask = (1 << max(10, (2 * tokens.size).bit_length())) - 1
        heads = np.full(self._mask + 1, _NOWHERE, np.int32)
        before = np.full(tokens.size, _NOWHERE, np.int32)
        places = np.arange(1, tokens.size - 1)  # the second tokens of all pairs but the last
        if places.size:
            hashes = (tokens[:-2] * _FACTOR + tokens[1:-1]) & self._mask
            order = np.argsort(hashes, kind="stable")
            same = hashes[order[1:]] == hashes[order[:-1]]
            before[places[order[1:][same]]] = places[order[:-1][same]]
            lasts = order[np.append(~same, True)]
            heads[hashes[lasts]] = places[lasts]
        self.tokens = array("q", tokens.tobytes())
        self._heads = array("i", heads.tobytes())
        self._before = array("i", before.tobytes())

    def add(self, token: int) -> None:
        """The text goes on with a token."""
        tokens, last = self.tokens, len(self.tokens) - 1
        if last >= 1:
            at = (tokens[last - 1] * _FACTOR + tokens[last]) & self._mask
            self._before[last] = self._heads[at]
            self._heads[at] = last
        tokens.append(token)
        self._before.append(_NOWHERE)

    def find(self) -> Found | None:
        """Where the most of the last tokens came before, the latest such place."""
        tokens, last = self.tokens, len(self.tokens) - 1
        if last < 1:
            return None
        place = self._heads[(tokens[last - 1] * _FACTOR + tokens[last]) & self._mask]
        best, most = _NOWHERE, PAIR - 1
        for _ in range(MOST_PLACES):
            if place == _NOWHERE:
                break
            matched = 0
            limit = min(place + 1, MOST_MATCHED)
            while matched < limit and tokens[place - matched] == tokens[last - matched]:
                matched += 1
            if matched > most:
                best, most = place, matched
            place = self._before[place]
        return None if best == _NOWHERE else Found(best + 1, most)

    def follows(self, end: int, count: int) -> list[int]:
        """So many tokens from a place on; behind the text's end it is taken to repeat itself."""
        tokens = self.tokens
        period = len(tokens) - end
        return [tokens[end + i % period] for i in range(count)]
