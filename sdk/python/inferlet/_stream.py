"""Text from tokens as they come: whole characters only, and stop strings across token borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

WINDOW = 16  # tokens decoded again for each new one, at the most
CONTEXT = 6  # tokens decoded before the first new one, so that its leading space is seen
BROKEN = "\N{REPLACEMENT CHARACTER}"
ROUND = 1000  # characters of the same again and again; of what has no letters, twice as many
TIMES = 4
LONGEST_CHARACTER = 4  # tokens; a character has four bytes, and each may be a token of its own


class TextDecoder:
    """Turns a stream of tokens into a stream of text.

    A token may end within a character, and what a token means can depend on the one before it. So
    the last few tokens are decoded together, and the new part of their text is given out up to its
    last whole character. What looks broken after that waits, as long as it may become a character.
    One call of the host a token, and one more every `WINDOW` tokens.
    """

    __slots__ = ("_decode", "_given", "_held", "_tokens")

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._tokens = list(before)
        self._given = ""  # text of the window given out
        if self._tokens:
            self._shorten()
        self._held = 0  # newest tokens whose text is not all given out yet

    def feed(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        self._tokens.append(token)
        self._held += 1
        text = self._decode(self._tokens)
        new = self._new(text)
        if not new.endswith(BROKEN):
            self._held = 0
            self._given = text
            if len(self._tokens) >= WINDOW:
                self._shorten()
            return new
        whole = len(new.rstrip(BROKEN))
        broken = len(new) - whole
        if whole:
            self._held = 1  # this token has completed what was held
        elif self._held >= LONGEST_CHARACTER:
            # Only the last tokens can still become a character. They may be one sign each.
            broken = min(broken, LONGEST_CHARACTER - 1)
        else:
            return ""
        if len(self._tokens) >= WINDOW:
            self._tokens = self._tokens[LONGEST_CHARACTER:]  # leaves what is held
            text = self._decode(self._tokens)
        self._given = text[: len(text) - broken]
        return new[: len(new) - broken]

    def feed_all(self, tokens: Sequence[int]) -> str:
        """The text of all tokens that there will be."""
        self._tokens += tokens
        return self._new(self._decode(self._tokens))

    @property
    def waiting(self) -> bool:
        """True if the newest token's text is not all given out."""
        return self._held > 0

    def finish(self) -> str:
        """The text of the tokens that never made a whole character."""
        if not self._held:
            return ""
        text = self._decode(self._tokens)
        new = self._new(text)
        self._given = text
        self._held = 0
        return new

    def _shorten(self) -> None:
        """Keeps the last few tokens, from the start of a character on.

        Some tokenizers make nothing of a row of bytes that begins within a character.
        """
        for count in range(CONTEXT, CONTEXT + LONGEST_CHARACTER):
            tokens = self._tokens[-count:]
            self._given = self._decode(tokens)
            if not self._given.startswith(BROKEN):
                break
        self._tokens = tokens

    def _new(self, text: str) -> str:
        """The part of the window's text that was not given out."""
        given = self._given
        # The tokens before the first new one may have ended within a character, which is whole now.
        while given.endswith(BROKEN) and not text.startswith(given):
            given = given[:-1]
        return text[len(given) :]


class StopStrings:
    """Finds the first of some strings in a stream of text, and passes on what precedes it."""

    __slots__ = ("_held", "stops")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop at once")
        self.stops = tuple(stops)
        self._held = ""  # text that may be the start of a stop string

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to give out, and whether a stop string was found after it."""
        text = self._held + text
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self._held = ""
            return text[: min(places)], True
        keep = max(map(_overlap, [text] * len(self.stops), self.stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """The text held back, when nothing more comes."""
        text, self._held = self._held, ""
        return text


def goes_round(text: str) -> bool:
    """True if a text ends with one phrase, again and again: for `ROUND` characters, and at least
    `TIMES` times. Rulers, and tables of zeros, may be twice as long.
    """
    end = text[-(ROUND // TIMES) :]  # a phrase's greatest length: where it came before tells one
    before = text.rfind(end, -2 * len(end), -1)
    if before < 0:
        return False
    period = len(text) - len(end) - before
    length = ROUND if any(map(str.isalpha, text[-period:])) else 2 * ROUND
    whole = text[-length:]
    return len(whole) == length and whole[period:] == whole[:-period]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that starts the stop string."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0
    )
