"""The token monitor: reads every token, says what may come next, and marks the critical section.

AsyncLM, section 5.1: constrains generation to valid CML, keeps the model from writing interrupts,
and tells when an interrupt may be put in.
"""

from __future__ import annotations

from asynclm.cml.dialect import Dialect, Marker
from asynclm.cml.parser import Block, Parser, State
from inferlet import TextDecoder

RESERVED = frozenset({"user", "agent"})  # identifiers of interrupts that answer no call


class Monitor:
    """Follows one generation. Its markers are special tokens, or plain text: then one may be spread
    over tokens, and share its first token with what precedes it.
    """

    def __init__(
        self, dialect: Dialect, stop_tokens: list[int], *, reserved: frozenset[str] = RESERVED
    ) -> None:
        """Starts outside of all blocks; calls may not have reserved identifiers."""
        self.dialect = dialect
        self.stop_tokens = frozenset(stop_tokens)
        self._machine = Parser(reserved)
        self._decoder = TextDecoder(dialect.codec.decode)
        self._held = False  # a character is incomplete
        self._tail = ""  # text that may be the beginning of a marker
        # Outside of blocks the model writes text, [CALL], [TRAP] and the end of its turn.
        self._trap = dialect.markers.get(Marker.TRAP)
        allowed = {dialect.markers.get(Marker.CALL), self._trap}
        self._never = frozenset(dialect.special.values()) - self.stop_tokens - allowed

    @property
    def state(self) -> State:
        """Where the generation is."""
        return self._machine.state

    @property
    def critical(self) -> bool:
        """True if interrupts have to wait: within a block, a marker or a character."""
        return self.state is not State.BETWEEN or bool(self._tail) or self._held

    def feed(self, token: int) -> list[Block]:
        """Reads a generated token; the blocks, or the text, that it completes. Raises CmlError: the
        token is not valid here; `banned` and `rejects` tell beforehand.
        """
        marker = self.dialect.by_token.get(token)
        if marker is not None:
            return self.end_turn() + self._machine.marker(marker)
        text = self._decoder.feed(token)
        self._held = not text or self._decoder.waiting
        return self._read(text) if self.dialect.is_text else self._machine.text(text)

    def end_turn(self) -> list[Block]:
        """Text that was held back: a character or a marker that was never completed. The next turn
        goes on with the same identifiers.
        """
        text = self._tail + self._decoder.finish()
        self._tail, self._held = "", False
        self._decoder = TextDecoder(self.dialect.codec.decode)
        return self._machine.text(text)

    def _read(self, new: str) -> list[Block]:
        """Reads text in which there may be markers."""
        blocks: list[Block] = []
        before, marker, text = _split(self._tail + new)
        while marker is not None:
            blocks += self._machine.text(before) + self._machine.marker(marker)
            before, marker, text = _split(text)
        keep = max(_overlap(text, marker) for marker in Marker)
        self._tail = text[len(text) - keep :]
        return blocks + self._machine.text(text[: len(text) - keep])

    def banned(self, *, trap: bool) -> frozenset[int]:
        """Tokens that may not come next, outside of a block, whatever came before; a `trap` may if
        there is anything to wait for.
        """
        if trap or self._trap is None:
            return self._never
        return self._never | {self._trap}

    def rejects(self, token: int, *, trap: bool) -> bool:
        """True if a token outside of blocks would make the text invalid, where markers are text."""
        if not self.dialect.is_text or token in self.stop_tokens:
            return False
        _, marker, rest = _split(self._tail + self.dialect.codec.decode([token]))
        if marker is None:
            return False
        # A block begins where a token ends, so that its grammar begins there, too.
        return bool(rest) or not (marker is Marker.CALL or (marker is Marker.TRAP and trap))


def _split(text: str) -> tuple[str, Marker | None, str]:
    """A text at its first marker: what is before it, and behind it, or all where there is none."""
    places = [(text.find(marker), marker) for marker in Marker if marker in text]
    if not places:
        return "", None, text
    place, marker = min(places)
    return text[:place], marker, text[place + len(marker) :]


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that begins the marker."""
    most = min(len(text), len(marker) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(marker[:n])), 0)
