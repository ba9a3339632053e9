"""Users' shares of one model, and which instances end when its pages or embeds are short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pie_control.resources.pools import Allotments, EmbedPool, PagePool
from pie_control.resources.samplers import PROGRAM_BYTES, SamplerPool

if TYPE_CHECKING:
    from pie_control.instances.instance import Ends, Instance
    from pie_control.resources.exports import Exports
    from pie_control.resources.pools import HostMemory
    from pie_control.resources.space import Space
    from pie_control.shares import Share, Shares


class ModelShares:
    """Users' shares of what instances hold of one model."""

    def __init__(
        self,
        model: str,
        shares: Shares,
        spaces: dict[Instance, Space],
        embeds: EmbedPool,
        samplers: SamplerPool,
        host_pages: HostMemory,
    ) -> None:

        def of_user(held: Callable[[Space], int]) -> Callable[[str], int]:
            return lambda user: sum(held(s) for i, s in spaces.items() if i.user == user)

        def add(what: str, size: int, held: Callable[[Space], int]) -> Share:
            return shares.add(f"{model}: {what}", size, of_user(held))

        shares.add_lent(f"{model}: KV pages", of_user(lambda space: space.pages.resident))
        self.embeds = add("embeds", embeds.size, lambda space: space.embeds_held)
        self.samplers = add("samplers", samplers.size, lambda space: len(space.samplers))
        self.remembering = add(
            "samplers that remember tokens",
            samplers.rows.size,
            lambda space: space.samplers.remembering,
        )
        self.program_bytes = add(
            "bytes of device programs", PROGRAM_BYTES, lambda space: space.samplers.program_bytes
        )
        self.host_pages = add("host pages", host_pages.size, lambda space: space.host.held)


class Reclaim:
    """Ends instances of one model, so that others get its pages or embeds."""

    def __init__(
        self,
        pages: PagePool,
        embeds: EmbedPool,
        exports: Exports,
        spaces: dict[Instance, Space],
        ends: Ends,
    ) -> None:
        """Takes the model's pools, and who holds something of them; `ends` ends instances."""
        self._pages = pages
        self._embeds = embeds
        self._exports = exports
        self._spaces = spaces
        self._ends = ends

    def end_younger(self, instance: Instance, count: int) -> bool:
        """Ends instances that hold pages and make way, until `count` are free.

        Ends no instance if that could not be enough.
        """
        return self._reclaim(instance, count, self._pages)

    def embeds(self, instance: Instance, count: int) -> bool:
        """Ends instances until `count` embeds are free. As `end_younger`."""
        return self._reclaim(instance, count, self._embeds)

    def free_ended(self, count: int, pool: PagePool | EmbedPool) -> bool:
        """Frees what ended instances hold, until enough is free; returns whether it is."""
        ended = [
            instance
            for instance, space in self._spaces.items()
            if instance.ended is not None and self._held(space, pool)
        ]
        return self._ends.reclaim(ended, lambda: pool.free >= count)

    def page_allotments(self) -> Allotments:
        """Users' allotments of the pages, by what their instances and exports hold."""
        return self._allotments(self._pages)

    def _reclaim(self, instance: Instance, count: int, pool: PagePool | EmbedPool) -> bool:
        if self.free_ended(count, pool):
            return True
        victims = self._victims(instance, count, pool)
        if pool.free + sum(self._held(self._spaces[i], pool) for i in victims) < count:
            return False
        return self._ends.reclaim(victims, lambda: pool.free >= count)

    def _victims(
        self, instance: Instance, count: int, pool: PagePool | EmbedPool
    ) -> list[Instance]:
        """The instances that may be ended for another one, the first to end first.

        `Allotments.makes_way` has the rule; those of other users come before the user's own.
        """
        allotments = self._allotments(pool)
        found = [
            other
            for other, space in self._spaces.items()
            if self._held(space, pool) and allotments.makes_way(other, instance, count)
        ]
        return sorted(found, key=lambda i: (i.user == instance.user, -i.number))

    def _held(self, space: Space, pool: PagePool | EmbedPool) -> int:
        return space.pages_held if pool is self._pages else space.embeds_held

    def _allotments(self, pool: PagePool | EmbedPool) -> Allotments:
        of_user: Counter[str] = Counter()
        if pool is self._pages:
            of_user.update(self._exports.listed)
        for instance, space in self._spaces.items():
            of_user[instance.user] += self._held(space, pool)
        exactly = self._pages_of if pool is self._pages else of_user.__getitem__
        return Allotments(pool.size, of_user, exactly)

    def _pages_of(self, user: str) -> int:
        """Pages that a user's instances and exports hold, shared ones once."""
        spaces = [space for instance, space in self._spaces.items() if instance.user == user]
        holds = np.zeros(self._pages.size, np.bool_)
        for pages in self._exports.of_user(user):
            holds[pages] = True
        for space in spaces:
            holds[space.pages.all_resident()[1]] = True
        return int(np.count_nonzero(holds)) + sum(
            space.pages_held - space.pages.resident for space in spaces
        )
