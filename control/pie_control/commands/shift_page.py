"""Keys of pages turned to other positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from pie_control.commands.command import Command, Touched, chain
from pie_py.wire.plan import Int32, ShiftKv

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub


@dataclass(slots=True, eq=False)
class ShiftKvCommand(Command):
    """Adds a distance to the positions of slots."""

    kind: ClassVar[str] = ShiftKv.kind
    pages: Int32  # [p]
    slots: Int32  # [n] of these pages, filled
    distance: int

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Slots."""
        return sum(len(command.slots) for command in commands)

    def read(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []

    def written(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> ShiftKv:
        """One batch."""
        distances = [np.full(len(c.slots), c.distance, np.int32) for c in commands]
        return ShiftKv(chain([c.slots for c in commands]), chain(distances))

    def scrub(self, scrub: Scrub) -> None:
        """Nothing: the slots hold what their owner wrote."""
