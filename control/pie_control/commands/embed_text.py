"""Tokens into embeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pie_control.commands.command import BatchLimits, Command, Numbers, Touched, int32, within
from pie_py.wire.plan import EmbedText

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub
    from pie_control.prefix.provenance import Provenance


@dataclass(slots=True, eq=False)
class EmbedTextCommand(Command):
    """Embeds tokens."""

    kind: ClassVar[str] = EmbedText.kind
    runs_ahead: ClassVar[bool | None] = False
    tokens: Numbers  # [n]
    positions: Numbers  # [n]
    embeds: Numbers  # [n]

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Tokens."""
        return sum(len(command.tokens) for command in commands)

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The embeds."""
        return [], self.embeds

    @classmethod
    def join(cls, commands: Sequence[Self]) -> EmbedText:
        """One batch."""
        tokens: Numbers = []
        positions: Numbers = []
        embeds: Numbers = []
        for command in commands:
            tokens += command.tokens
            positions += command.positions
            embeds += command.embeds
        return EmbedText(int32(tokens), int32(positions), int32(embeds))

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as have the tokens of a batch."""
        return within((len(command.tokens) for command in commands), limits.tokens)

    def trace(self, provenance: Provenance) -> None:
        """The embeds hold a text now."""
        provenance.embedded(self.queue, self.embeds, self.positions, self.tokens)

    def scrub(self, scrub: Scrub) -> None:
        """The embeds."""
        scrub.embeds.update(self.embeds)
