"""The scrub list: what dropped commands should have written, to be cleared before it can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pie_control.commands.command import Command
from pie_py.wire.plan import Batch, Clear

if TYPE_CHECKING:
    from pie_control.commands.sampler import SetSamplerCommand


class Scrub:
    """Slots, embeds and host pages that hold what their last owner left, and samplers.

    A page's slots count as filled from the moment at which the command that fills them is queued. If an
    earlier command of its queue fails, that command never runs. What it should have filled is cleared
    then, so that no program reads what another one left there.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.slots: set[int] = set()
        self.embeds: set[int] = set()
        self.host_pages: set[int] = set()
        self.samplers: set[int] = set()  # whose last token is not the one that was to be
        self.unmade: list[SetSamplerCommand] = []  # that are carried out all the same

    def add(self, command: Command) -> None:
        """Notes a command that is dropped."""
        command.scrub(self)

    def take(self) -> list[Batch]:
        """The batches that set this right, which go before all that is sent from now on."""
        parts = self.slots, self.embeds, self.host_pages, self.samplers
        if not (any(parts) or self.unmade):
            return []
        batches: list[Batch] = [command.join([command]) for command in self.unmade]
        batches.append(Clear(*(np.array(sorted(part), np.int32) for part in parts)))
        self.unmade.clear()
        for part in parts:
            part.clear()
        return batches
