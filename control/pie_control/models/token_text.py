"""The text of tokens as they come: whole characters only, up to the first of some strings."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TokenText:
    """Turns a stream of tokens into a stream of text.

    The text is that of the tokens' bytes. Bytes of no character are U+FFFD; those of a character
    that is not whole wait. So does text that may be the start of a string that ends it.

    Attributes:
        ends: the strings.
        found: number of the string that was found; how many there are if none was.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        before: Sequence[int],
        ends: Sequence[str],
        hidden: Sequence[int],
    ) -> None:
        """Has no text yet. Tokens `before` the first one may have begun its character; the spans of
        `hidden` tokens have no text. The strings that end the text do not belong to it.
        """
        self._bytes_of = bytes_of
        self.ends = ends
        starts, counts = hidden[::2], hidden[1::2]
        self._hidden = [
            range(start, start + count) for start, count in zip(starts, counts, strict=True)
        ]
        self._bytes = self._bytes_if_shown if self._hidden else bytes_of
        self.found = len(ends)
        self._held = ""  # may be the start of one of `ends`
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(b"".join(map(bytes_of, before)))
        self._begun = bool(self._decoder.getstate()[0])  # a character, by the tokens before

    @property
    def is_ended(self) -> bool:
        """True if it was ended by one of the strings."""
        return self.found < len(self.ends)

    def feed(self, tokens: Sequence[int]) -> tuple[str, int]:
        """The text that tokens complete, and how many of them it took: all, unless the text ends.

        Once it has ended, nothing more can be fed.
        """
        if not self.ends:
            return self._decode(b"".join(map(self._bytes, tokens))), len(tokens)
        parts = []
        for count, token in enumerate(tokens, 1):
            parts.append(self._pass(self._decode(self._bytes(token))))
            if self.is_ended:
                return "".join(parts), count
        return "".join(parts), len(tokens)

    def finish(self) -> str:
        """The text that waited, when nothing more comes."""
        text = self._decode(b"", final=True)
        if self.ends:
            text = self._pass(text)
        text, self._held = text + self._held, ""
        return text

    def _bytes_if_shown(self, token: int) -> bytes:
        if any(token in span for span in self._hidden):
            return b""
        return self._bytes_of(token)

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if self._begun and text:
            self._begun = False
            return text.removeprefix(_BROKEN)  # broken before, so not of this text
        return text

    def _pass(self, text: str) -> str:
        """The text that is no part of a string that ends it, and none after that."""
        text = self._held + text
        places = ((text.find(end), -len(end), number) for number, end in enumerate(self.ends))
        found = [place for place in places if place[0] >= 0]
        if found:
            place, _, self.found = min(found)
            self._held = ""
            return text[:place]
        keep = max(_overlap(text, end) for end in self.ends)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, end: str) -> int:
    """Length of the longest end of a text that begins a string."""
    lengths = range(min(len(text), len(end) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(end[:length])), 0)
