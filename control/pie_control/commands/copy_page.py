"""Slots of one page copied to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pie_control.commands.command import Command, Touched, chain
from pie_py.wire.plan import CopyKv, Int32

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub
    from pie_control.prefix.provenance import Provenance


@dataclass(slots=True, eq=False)
class CopyKvCommand(Command):
    """Copies slots of one page to another."""

    kind: ClassVar[str] = CopyKv.kind
    sources: Int32  # [n] KV slots
    targets: Int32  # [n] KV slots
    source_page: int
    target_page: int
    from_start: bool  # the first slots of the source become the first ones of an empty page

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Slots."""
        return sum(len(command.sources) for command in commands)

    def read(self) -> Touched:
        """The source page."""
        return [self.source_page], []

    def written(self) -> Touched:
        """The target page."""
        return [self.target_page], []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> CopyKv:
        """One batch."""
        return CopyKv(chain([c.sources for c in commands]), chain([c.targets for c in commands]))

    def trace(self, provenance: Provenance) -> None:
        """The target holds the first tokens of the source, or something unknown."""
        if self.from_start:
            provenance.copied(self.queue, self.source_page, self.target_page, len(self.sources))
        else:
            provenance.overwritten([self.target_page], [])

    def scrub(self, scrub: Scrub) -> None:
        """The target slots."""
        scrub.slots.update(self.targets.tolist())
