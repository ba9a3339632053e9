"""Embeds copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pie_control.commands.command import BatchLimits, Command, Numbers, Touched, int32, within
from pie_py.wire.plan import CopyEmbed

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub


@dataclass(slots=True, eq=False)
class CopyEmbedCommand(Command):
    """Copies embeds, to positions of their own or as they are."""

    kind: ClassVar[str] = CopyEmbed.kind
    sources: Numbers  # [n] embeds
    positions: Numbers  # [n] of the targets; -1 is the source's
    embeds: Numbers  # [n] that become copies, no two the same

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Embeds."""
        return sum(len(command.embeds) for command in commands)

    def read(self) -> Touched:
        """The sources."""
        return [], self.sources

    def written(self) -> Touched:
        """The copies."""
        return [], self.embeds

    @classmethod
    def join(cls, commands: Sequence[Self]) -> CopyEmbed:
        """One batch."""
        return CopyEmbed(
            int32([n for command in commands for n in command.sources]),
            int32([n for command in commands for n in command.positions]),
            int32([n for command in commands for n in command.embeds]),
        )

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as have the tokens of a batch."""
        return within((len(command.embeds) for command in commands), limits.tokens)

    def scrub(self, scrub: Scrub) -> None:
        """The copies."""
        scrub.embeds.update(self.embeds)
