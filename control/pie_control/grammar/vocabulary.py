"""A model's tokens, as llguidance wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer

from pie_control.errors import ApiError
from pie_py.wire.plan import Uint32


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one model, and masks over them."""

    tokenizer: LLTokenizer
    size: int  # tokens of the model
    stops: frozenset[int]  # tokens that end a text
    stop_mask: Uint32  # [w] allows these alone
    known: Uint32  # [w] the bits of the model's tokens

    def words(self, mask: bytes) -> Uint32:
        """A mask of llguidance as words `[w]` over the model's tokens."""
        words: Uint32 = np.frombuffer(mask, np.uint32)[: len(self.known)]
        return words & self.known


def load_vocabulary(folder: Path, size: int, id_limit: int, stops: Sequence[int]) -> Vocabulary:
    """Reads a model's `tokenizer.json`. Takes tens of milliseconds: call it in a thread.

    Args:
        folder: of the model.
        size: tokens of the model, among them ids that the tokenizer does not use.
        id_limit: ids of the tokenizer.
        stops: tokens that end a text.

    Raises:
        ApiError: `unsupported` if llguidance cannot use the tokenizer.
    """
    ids = max(size, id_limit)
    # A grammar's end is a token to llguidance. A model without one gets an id that no mask shows.
    ends = list(stops) or [ids]
    try:
        tokenizer = LLTokenizer(
            str(folder / "tokenizer.json"), n_vocab=ids + (not stops), eos_token=ends
        )
    except Exception as error:  # whatever it finds wrong, the model has no grammars then
        raise ApiError(
            "unsupported", f"the model's tokenizer does not work with grammars: {error}"
        ) from error
    return Vocabulary(
        tokenizer, size, frozenset(stops), _mask(stops, size), _mask(range(size), size)
    )


def _mask(tokens: Sequence[int], size: int) -> Uint32:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    words: Uint32 = np.packbits(bits, bitorder="little").view(np.uint32)
    return words
