"""Pages to host memory and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pie_control.commands.command import BatchLimits, Command, Touched, chain, within
from pie_control.resources.host_memory import MAX_SWAP_PAGES
from pie_py.wire.plan import Int32, SwapIn, SwapOut

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub


@dataclass(slots=True, eq=False)
class SwapOutCommand(Command):
    """Copies pages to host pages."""

    kind: ClassVar[str] = SwapOut.kind
    pages: Int32  # [n]
    hosts: Int32  # [n] host pages
    first_name: int  # of host pages

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Pages."""
        return sum(len(command.pages) for command in commands)

    def read(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []

    def written(self) -> Touched:
        """The host pages."""
        return (self.hosts + self.first_name).tolist(), []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> SwapOut:
        """One batch."""
        return SwapOut(chain([c.pages for c in commands]), chain([c.hosts for c in commands]))

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as may be swapped at once."""
        return within((len(command.pages) for command in commands), MAX_SWAP_PAGES)

    def scrub(self, scrub: Scrub) -> None:
        """The host pages."""
        scrub.host_pages.update(self.hosts.tolist())


@dataclass(slots=True, eq=False)
class SwapInCommand(Command):
    """Copies host pages to pages."""

    kind: ClassVar[str] = SwapIn.kind
    hosts: Int32  # [n] host pages
    pages: Int32  # [n]
    first_name: int  # of host pages

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Pages."""
        return sum(len(command.pages) for command in commands)

    def read(self) -> Touched:
        """The host pages."""
        return (self.hosts + self.first_name).tolist(), []

    def written(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> SwapIn:
        """One batch."""
        return SwapIn(chain([c.hosts for c in commands]), chain([c.pages for c in commands]))

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as may be swapped at once."""
        return within((len(command.pages) for command in commands), MAX_SWAP_PAGES)

    def scrub(self, scrub: Scrub) -> None:
        """All slots of the pages."""
        for page in self.pages.tolist():
            scrub.slots.update(range(page * scrub.page_size, (page + 1) * scrub.page_size))
