"""The token monitor: reads every token, says what may come next, and marks the critical section.

AsyncLM, section 5.1: constrains generation to valid CML, keeps the model from writing interrupts,
and tells when an interrupt may be put in.
"""

from __future__ import annotations

from asynclm.cml.dialect import Dialect, Marker
from asynclm.cml.parser import Block, State, TextParser, parser_for

RESERVED = frozenset({"user", "agent"})  # identifiers of interrupts that answer no call


class Monitor:
    """Follows one generation.

    Attributes:
        dialect: how the model writes CML.
    """

    def __init__(
        self, dialect: Dialect, stop_tokens: list[int], *, reserved: frozenset[str] = RESERVED
    ) -> None:
        """Starts outside of all blocks.

        Args:
            dialect: how the model writes CML.
            stop_tokens: tokens that end a turn.
            reserved: identifiers that calls may not have.
        """
        self.dialect = dialect
        self.stop_tokens = frozenset(stop_tokens)
        self._parser = parser_for(dialect, reserved)
        # Outside of blocks the model writes text, [CALL], [TRAP] and the end of its turn.
        allowed = {dialect.markers.get(Marker.CALL), dialect.markers.get(Marker.TRAP)}
        self._never = frozenset(dialect.special.values()) - self.stop_tokens - allowed
        self._trap = dialect.markers.get(Marker.TRAP)

    @property
    def state(self) -> State:
        """Where the generation is."""
        return self._parser.machine.state

    @property
    def critical(self) -> bool:
        """True if interrupts have to wait: within a block, a marker or a character."""
        return self._parser.critical

    def feed(self, token: int) -> list[Block]:
        """Reads a generated token; the blocks, or the text, that it completes.

        Raises:
            CmlError: the token is not valid here; `banned` and `rejects` tell beforehand.
        """
        return self._parser.feed(token)

    def end_turn(self) -> list[Block]:
        """Text that was held back; the next turn goes on with the same identifiers.

        Raises:
            CmlError: within a block.
        """
        return self._parser.finish_text()

    def banned(self, *, trap: bool) -> frozenset[int]:
        """Tokens that may not come next, outside of a block, whatever came before.

        Args:
            trap: whether a trap may come: whether there is anything to wait for.
        """
        if trap or self._trap is None:
            return self._never
        return self._never | {self._trap}

    def rejects(self, token: int, *, trap: bool) -> bool:
        """True if a token outside of blocks would make the text invalid, where markers are text."""
        if not isinstance(self._parser, TextParser) or token in self.stop_tokens:
            return False
        marker, rest = self._parser.preview(token)
        if marker is None:
            return False
        # A block begins where a token ends, so that its grammar begins there, too.
        return bool(rest) or not (marker is Marker.CALL or (marker is Marker.TRAP and trap))
