"""CML's five markers in a model's tokens: as special tokens, or as plain text where it has none.

CML (Context Markup Language; AsyncLM, section 3) is how a model writes calls and is told results:
`[CALL] id [HEAD] call [END]`, `[INTR] id [HEAD] value [END]`, `[TRAP][END]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol


class Marker(StrEnum):
    """A control token of CML."""

    CALL = "[CALL]"
    HEAD = "[HEAD]"
    END = "[END]"
    INTR = "[INTR]"
    TRAP = "[TRAP]"


class Codec(Protocol):
    """A dialect's view of a tokenizer; `inferlet.Tokenizer` is one."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens that are written in it included."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""

    def special_tokens(self) -> tuple[list[int], list[bytes]]:
        """Ids of the special tokens, and the bytes of each."""


class Dialect:
    """How one model writes CML.

    `special` has the ids of all special tokens by their texts, `markers` those of the markers; none
    if the model has not all five, which then are written, and read, as plain text.
    """

    def __init__(self, codec: Codec) -> None:
        """Looks at a model's special tokens."""
        self.codec = codec
        ids, names = codec.special_tokens()
        self.special = {
            name.decode(errors="replace"): token for token, name in zip(ids, names, strict=True)
        }
        found = {marker: self.special[marker] for marker in Marker if marker in self.special}
        self.markers: dict[Marker, int] = {} if len(found) < len(Marker) else found
        self.by_token = {token: marker for marker, token in self.markers.items()}
        self._special_ids = frozenset(self.special.values())
        self._escaped = sorted({*self.special, *Marker}, key=len, reverse=True)

    @property
    def is_text(self) -> bool:
        """True if markers are plain text."""
        return not self.markers

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a text that is no markup, whatever it looks like: none of them is special."""
        return [t for t in self.codec.encode(self.escape(text)) if t not in self._special_ids]

    def encode_block(self, parts: Iterable[Marker | str]) -> list[int]:
        """Tokens of a block, given as markers and the texts between them."""
        tokens: list[int] = []
        for part in parts:
            if not isinstance(part, Marker):
                tokens += self.encode_text(part)
            elif self.markers:
                tokens.append(self.markers[part])
            elif part not in self.special:
                tokens += self.codec.encode(part)
            else:  # as plain text, though it alone of the five is a special token
                tokens += self.codec.encode(part[:1]) + self.codec.encode(part[1:])
        return tokens

    def escape(self, text: str) -> str:
        r"""A text without anything that reads as a marker or a special token.

        Its first character becomes `\uXXXX`, which means the same in a string of JSON or Python.
        """
        text = whole(text)
        for name in self._escaped:
            if name and name in text:
                text = text.replace(name, f"\\u{ord(name[0]):04x}{name[1:]}")
        return text


def whole(text: str) -> str:
    """A text with halves of surrogate pairs as JSON's escapes: UTF-8 has nothing for them."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def call_block(identifier: str, call: str) -> tuple[Marker | str, ...]:
    """The parts of `[CALL]a1[HEAD]fetch_weather(city="Paris")[END]`; `identifier` may be empty."""
    head: tuple[Marker | str, ...] = (identifier, Marker.HEAD) if identifier else ()
    return (Marker.CALL, *head, call, Marker.END)


TRAP_BLOCK: tuple[Marker | str, ...] = (Marker.TRAP, Marker.END)
