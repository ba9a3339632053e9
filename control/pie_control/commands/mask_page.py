"""Slots of pages hidden from attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from pie_control.commands.command import Command, Touched, chain
from pie_py.wire.plan import Int32, MaskKv, Uint32

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub


@dataclass(slots=True, eq=False)
class MaskKvCommand(Command):
    """Sets the mask words of pages."""

    kind: ClassVar[str] = MaskKv.kind
    pages: Int32  # [n]
    masks: Uint32  # [n]

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Pages."""
        return sum(len(command.pages) for command in commands)

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> MaskKv:
        """One batch."""
        return MaskKv(
            chain([c.pages for c in commands]), np.concatenate([c.masks for c in commands])
        )

    def scrub(self, scrub: Scrub) -> None:
        """Nothing: a slot that is not hidden holds what its owner wrote."""
