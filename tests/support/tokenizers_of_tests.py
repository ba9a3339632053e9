"""The embedded model's tokenizer, with CML's markers as special tokens and without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from asynclm.cml.dialect import Dialect, Marker

FOLDER = Path(__file__).parents[2] / "inference/pie_inference/embedded/pie-tiny"
STOP = "<|end|>"


class HostCodec:
    """A tokenizer as the guest's `inferlet.Tokenizer` offers it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def special_tokens(self) -> tuple[list[int], list[bytes]]:
        added = self._tokenizer.get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        return list(special), [content.encode() for content in special.values()]


@cache
def codec(markers: bool) -> HostCodec:
    """The tokenizer; without markers, `[CALL]` is text like any other."""
    return codec_without(frozenset() if markers else frozenset(Marker))


def codec_without(markers: frozenset[Marker]) -> HostCodec:
    """The tokenizer, in which these markers are text like any other."""
    settings = json.loads((FOLDER / "tokenizer.json").read_text())
    settings["added_tokens"] = [
        token for token in settings["added_tokens"] if token["content"] not in markers
    ]
    return HostCodec(Tokenizer.from_str(json.dumps(settings)))


@cache
def dialect(markers: bool) -> Dialect:
    """The dialect of such a model."""
    found = Dialect(codec(markers))
    assert found.is_text is not markers
    return found


def stop_token() -> int:
    """The token that ends a turn."""
    return codec(True).encode(STOP)[0]
