"""Commands on pages: slots copied, hidden or turned, and pages swapped to host memory and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pie_control.resources.pools import MAX_SWAP_PAGES
from pie_control.scheduler.commands.command import BatchLimits, Command, Scrub, chain, within
from pie_py.wire.plan import CopyKv, Int32, MaskKv, ShiftKv, SwapIn, SwapOut, Uint32

if TYPE_CHECKING:
    from pie_control.prefix.provenance import Provenance


@dataclass(slots=True, eq=False)
class CopyKvCommand(Command):
    """Copies slots of one page to another."""

    batch = CopyKv
    counted = "sources"
    columns = ("sources", "targets")
    reads = ("source_page", "")
    writes = ("target_page", "")
    sources: Int32  # [n] KV slots
    targets: Int32  # [n] KV slots
    source_page: int
    target_page: int
    from_start: bool  # the first slots of the source become the first ones of an empty page

    def trace(self, provenance: Provenance) -> None:
        """The target holds the first tokens of the source, or something unknown."""
        if self.from_start:
            provenance.copied(self.queue, self.source_page, self.target_page, len(self.sources))
        else:
            provenance.overwritten([self.target_page], [])

    def scrub(self, scrub: Scrub) -> None:
        """The target slots."""
        scrub.slots.update(self.targets.tolist())


@dataclass(slots=True, eq=False)
class MaskKvCommand(Command):
    """Sets the mask words of pages: which slots are hidden from attention."""

    batch = MaskKv
    counted = "pages"
    columns = ("pages", "masks")
    writes = ("pages", "")
    pages: Int32  # [n]
    masks: Uint32  # [n]


@dataclass(slots=True, eq=False)
class ShiftKvCommand(Command):
    """Adds a distance to the positions of slots: turns their keys."""

    batch = ShiftKv
    counted = "slots"
    reads = ("pages", "")
    writes = ("pages", "")
    pages: Int32  # [p]
    slots: Int32  # [n] of these pages, filled
    distance: int

    @classmethod
    def join(cls, commands: Sequence[Self]) -> ShiftKv:
        """One batch."""
        distances = [np.full(len(c.slots), c.distance, np.int32) for c in commands]
        return ShiftKv(chain([c.slots for c in commands]), chain(distances))


@dataclass(slots=True, eq=False)
class _Swap(Command):
    """Copies pages to host pages, or back."""

    counted = "pages"
    pages: Int32  # [n]
    hosts: Int32  # [n] host pages
    first_name: int  # of host pages

    @property
    def host_names(self) -> Int32:
        """The scheduler's name of the host pages."""
        return self.hosts + np.int32(self.first_name)

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as may be swapped at once."""
        return within((len(command.pages) for command in commands), MAX_SWAP_PAGES)


@dataclass(slots=True, eq=False)
class SwapOutCommand(_Swap):
    """Copies pages to host pages."""

    batch = SwapOut
    columns = ("pages", "hosts")
    reads = ("pages", "")
    writes = ("host_names", "")

    def scrub(self, scrub: Scrub) -> None:
        """The host pages."""
        scrub.host_pages.update(self.hosts.tolist())


@dataclass(slots=True, eq=False)
class SwapInCommand(_Swap):
    """Copies host pages to pages."""

    batch = SwapIn
    columns = ("hosts", "pages")
    reads = ("host_names", "")
    writes = ("pages", "")

    def split(self, count: int) -> SwapInCommand:
        """Takes the first pages out of the command, which is left with the others; returns a
        command of them that is to run before this one.
        """
        part = SwapInCommand(self.pages[:count], self.hosts[:count], self.first_name)
        part.is_part, part.queue, part.number = True, self.queue, self.number
        self.hosts, self.pages = self.hosts[count:], self.pages[count:]
        return part

    def scrub(self, scrub: Scrub) -> None:
        """All slots of the pages."""
        for page in self.pages.tolist():
            scrub.slots.update(range(page * scrub.page_size, (page + 1) * scrub.page_size))
