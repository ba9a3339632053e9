"""The scrub list: slots that dropped commands did not write, to be cleared before any read."""

from __future__ import annotations

import numpy as np

from pie_py.wire.plan import Batch, Clear


class Scrub:
    """Slots, embeds and host pages that hold what their last owner left, and samplers.

    A page's slots count as filled from the moment at which the command that fills them is queued.
    If an earlier command of its queue fails, that command never runs. What it should have filled is
    cleared then, so that no program reads what another one left there.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.slots: set[int] = set()
        self.embeds: set[int] = set()
        self.host_pages: set[int] = set()
        self.samplers: set[int] = set()  # whose last token is not the one that was to be
        self.still_run: list[Batch] = []  # of dropped commands that are carried out all the same

    def take(self) -> list[Batch]:
        """The batches that set this right, which go before all that is sent from now on."""
        parts = self.slots, self.embeds, self.host_pages, self.samplers
        if not (any(parts) or self.still_run):
            return []
        clear = Clear(*(np.array(sorted(part), np.int32) for part in parts))
        batches = [*self.still_run, clear]
        self.still_run.clear()
        for part in parts:
            part.clear()
        return batches
