"""Text from tokens as they come: whole characters only, and stop strings across token borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

WINDOW = 16  # tokens decoded anew for each token, at the most
CONTEXT = 6  # tokens decoded before the first new one, so that its leading space is seen
BROKEN = "\N{REPLACEMENT CHARACTER}"
LONGEST_CHARACTER = 4  # tokens; a character has four bytes, and each may be a token of its own


class TextDecoder:
    """Turns a stream of tokens into a stream of text.

    A token may end within a character, and what a token means can depend on the one before it. So
    the last few tokens are decoded together, and the new part of their text is given out when it
    ends with a whole character. One call of the host a token, and one more every `WINDOW` tokens.
    """

    __slots__ = ("_decode", "_given", "_held", "_tokens")

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        """Takes the host's detokenizer and the tokens before the first new one."""
        self._decode = decode
        self._tokens = list(before[-CONTEXT:])
        self._given = decode(self._tokens) if self._tokens else ""  # text of the window given out
        self._held = 0  # newest tokens whose text is not given out yet

    def feed(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        self._tokens.append(token)
        self._held += 1
        text = self._decode(self._tokens)
        if text.endswith(BROKEN) and self._held < LONGEST_CHARACTER:
            return ""
        return self._give(text)

    def finish(self) -> str:
        """The text of the tokens that never made a whole character."""
        if not self._held:
            return ""
        return self._give(self._decode(self._tokens))

    def _give(self, text: str) -> str:
        new = text[len(self._given) :]
        self._given = text
        self._held = 0
        if len(self._tokens) >= WINDOW:
            self._tokens = self._tokens[-CONTEXT:]
            self._given = self._decode(self._tokens)
        return new


class StopStrings:
    """Finds the first of some strings in a stream of text, and lets through what comes before it."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop at once")
        self._stops = tuple(stops)
        self._held = ""  # text that may be the start of a stop string

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to give out, and whether a stop string was found after it."""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self._held = ""
            return text[: min(places)], True
        keep = max(map(_overlap, [text] * len(self._stops), self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """The text held back, when nothing more comes."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that starts the stop string."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0
    )
