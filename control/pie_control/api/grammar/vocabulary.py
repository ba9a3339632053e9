"""A model's tokens, as llguidance wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from pie_control.errors import unsupported
from pie_control.models.tokenizer import TextCodec
from pie_py.wire.plan import Uint32

_ANCHOR = "\n"  # before a text, where a tokenizer treats the start of texts differently


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one model, and masks over them."""

    tokenizer: LLTokenizer
    size: int  # tokens of the model
    stops: frozenset[int]  # tokens that end a text
    stop_mask: Uint32  # [w] allows these alone
    known: Uint32  # [w] the bits of the model's tokens
    texts: list[bytes]  # of the model's tokens
    longest: int  # bytes of one

    def words(self, mask: bytes) -> Uint32:
        """A mask of llguidance as words `[w]` over the model's tokens."""
        words: Uint32 = np.frombuffer(mask, np.uint32)[: len(self.known)]
        return words & self.known

    def longest_start(self, mask: bytes) -> int | None:
        """The longest token that a mask allows; None if no one text begins with all of them."""
        words = self.words(mask)
        # Counted before they are listed: most masks allow most of the vocabulary, and a list of
        # 100 000 tokens takes milliseconds of the interpreter's lock.
        if not 0 < int.from_bytes(words.tobytes()).bit_count() <= self.longest:
            return None
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        return max(allowed.tolist(), key=lambda token: len(self.texts[token]))


def load_vocabulary(codec: TextCodec, size: int, stops: Sequence[int]) -> Vocabulary:
    """Hands a model's tokens to llguidance, `size` of them with those that the tokenizer does not
    use. Takes tenths of a second: call it in a thread.

    Raises:
        ApiError: `unsupported` if llguidance cannot use the tokens.
    """
    tokens = codec.vocabulary + [b""] * (size - codec.id_limit)
    special = [token for _, token in codec.special_tokens]
    ends = list(stops)
    if not ends:  # a grammar's end is a token to llguidance: one that no mask of ours shows
        ends = [len(tokens)]
        special += ends
        tokens = [*tokens, b"<end>"]
    source = _Tokens(codec, tokens, special, ends[0])
    try:
        source.tokenizer = LLTokenizer(
            TokenizerWrapper(source), n_vocab=len(tokens), eos_token=ends
        )
    except Exception as error:  # whatever it finds wrong, the model has no grammars then
        raise unsupported(f"the model's tokens do not work with grammars: {error}") from error
    stop_mask, known = _mask(stops, size), _mask(range(size), size)
    texts = tokens[:size]
    return Vocabulary(
        source.tokenizer,
        size,
        frozenset(stops),
        stop_mask,
        known,
        texts,
        max(map(len, texts), default=0),
    )


class _Tokens:
    """A tokenizer as llguidance asks it: the bytes of all tokens, and the tokens of a text.

    Its own reader of `tokenizer.json` is not used: that takes special tokens for the text that they
    are written with, so a grammar could force one.
    """

    def __init__(self, codec: TextCodec, tokens: list[bytes], special: list[int], end: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = end
        self.bos_token_id = None
        self.tokenizer: LLTokenizer | None = None
        self._encode = codec.plain_encoder() if codec.trusted else None

    def __call__(self, text: str) -> list[int]:
        """The tokens of a forced text, as the model would write it in the middle of another."""
        if not isinstance(text, str):  # llguidance tries bytes first
            raise TypeError("a text is wanted")
        if self._encode is None:
            return self._greedy(text)
        wanted = text.encode()
        tokens = self._encode(text)
        if self._bytes(tokens) == wanted:
            return tokens
        # Some tokenizers put a space before every text.
        tokens = self._encode(_ANCHOR + text)
        for start in range(1, min(4, len(tokens) + 1)):
            if self._bytes(tokens[start:]) == wanted:
                return tokens[start:]
        return self._greedy(text)

    def _greedy(self, text: str) -> list[int]:
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)

    def _bytes(self, tokens: list[int]) -> bytes:
        return b"".join([self.tokens[token] for token in tokens])


def _mask(tokens: Sequence[int], size: int) -> Uint32:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[[token for token in tokens if token < size]] = 1
    words: Uint32 = np.packbits(bits, bitorder="little").view(np.uint32)
    return words
