"""Candidates of eviction: the instances that can give KV pages to one that needs them, and whether
that will be enough.

Nothing is moved or changed here: these are the questions that the evictor asks before it acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pie_control.interception.eviction_states import EvictionRecords, EvictionState, movable
from pie_control.interception.waste import Choice
from pie_control.resources.pools import within_users

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance
    from pie_control.interception.policy_input import PolicyInput
    from pie_control.resources.space import Space


@dataclass(slots=True)
class _Gain:
    """Counts, without moving anything, how many pages an eviction would free."""

    free: int  # pages of the pool
    room: int  # pages of host memory

    def add(self, space: Space) -> int:
        """Adds all that a space could give; returns its pages that could move."""
        pages, filled = movable(space)
        # Empty pages take no room; filled ones go as long as host memory has room.
        self.free += pages - max(0, filled - self.room)
        self.room = max(0, self.room - filled)
        return pages


@dataclass(frozen=True, slots=True)
class Found:
    """Instances whose pages could be evicted.

    Attributes:
        willing: those that the policy would swap anyway.
        all: these, other paused ones, and ones that wait and make way; in the order of eviction.
        suffice: whether their pages are enough.
        host_full: whether host memory has no room for what they have.
    """

    willing: list[Instance]
    all: list[Instance]
    suffice: bool
    host_full: bool


class EvictionCandidates:
    """The instances of one model that can give pages.

    An instance gives while it is paused. One that is not paused gives only to those for which it
    makes way (`Allotments.makes_way`): within a user that keeps the order of launches, so that the
    oldest always gets on, and all end.

    Attributes:
        stepping: the instance whose turn is about to begin, which is not paused any more.
    """

    def __init__(self, records: EvictionRecords, policy_input: PolicyInput) -> None:
        self._model = policy_input.model
        self._records = records
        self._input = policy_input
        self.stepping: Instance | None = None

    def enough(self, instance: Instance, count: int) -> Found | None:
        """Whose pages to evict until `count` are free; None if all of them are too few."""
        pool, spaces = self._model.pages, self._model.spaces
        paused = [i for i in self.paused() if i is not instance]
        stopped = self._stopped(instance, count)
        # The usual case where many wait is found here, without a look at single pages.
        if pool.free + sum(spaces[i].pages.resident for i in (*paused, *stopped)) < count:
            return None
        waits = self._records.state(instance) is EvictionState.WAITING
        wanted = 0 if waits else count
        willing, others = self.in_order(paused, self._model.host_pages.free, wanted)
        candidates = [*willing, *others, *stopped]
        gain = _Gain(pool.free, self._model.host_pages.free)
        for candidate in candidates:
            gain.add(spaces[candidate])
            if gain.free >= count:
                return Found(willing, candidates, suffice=True, host_full=False)
        return Found(willing, candidates, suffice=False, host_full=not gain.room)

    def will_come(self, instance: Instance, count: int) -> bool:
        """True if pages will come to one that waits: others make way, pause, discard what they can
        compute again, or end by themselves.

        Not if host memory is too full for that, and ending those that make way would do.
        """
        model = self._model
        if model.pages.free + self._input.offered() >= count:
            return True  # programs look within a second, and are advised to discard
        allotments = model.reclaim.page_allotments()
        leaving = behind = 0
        candidates: list[Space] = []
        others_run = False  # an instance runs that holds pages: it will pause, or end
        for other, space in model.spaces.items():
            held, resident = space.pages_held, space.pages.resident
            if not held:
                continue
            leaving += held - resident  # named by commands that are not sent
            if other is instance:
                continue
            makes_way, paused = allotments.makes_way(other, instance, count), self._is_paused(other)
            if resident and (paused or makes_way):
                candidates.append(space)
            if makes_way:
                behind += held  # ending it frees these, wherever host memory stands
            others_run = others_run or not (paused or self._is_stuck(other))
        # All that these have is more than they can give, and costs no look at single pages.
        most = sum([space.pages.resident for space in candidates])
        if others_run and (most <= model.host_pages.free or model.pages.free + behind < count):
            return True  # host memory is not in the way, or no end of others would do
        gain = _Gain(model.pages.free + leaving, model.host_pages.free)
        if gain.free + most < count:
            return others_run
        if_host_had_room = gain.free + sum([gain.add(space) for space in candidates])
        if gain.free >= count:
            return True
        # If only host memory is in the way, the instance that came first is served first.
        return others_run and not (if_host_had_room >= count and model.pages.free + behind >= count)

    def _is_stuck(self, instance: Instance) -> bool:
        """True if an instance waits for pages and has nothing under way."""
        waits = self._records.state(instance) is EvictionState.WAITING
        return waits and self._model.scheduler.all_sent(instance)

    def to_hold(self, instance: Instance, count: int) -> dict[Instance, None]:
        """Instances that must stop and make way, until all that stand can give enough.

        None if they cannot give enough: then they have to go on, and end.
        """
        spaces = self._model.spaces
        gain = _Gain(self._model.pages.free, self._model.host_pages.free)
        chosen: dict[Instance, None] = {}
        for other in [*self.paused(), *self._that_make_way(instance, count)]:
            if gain.free >= count:
                break
            gives = gain.add(spaces[other])
            waits = self._records.state(other) is EvictionState.WAITING
            if gives and not waits and not self._is_paused(other):
                chosen[other] = None
        return chosen if gain.free >= count else {}

    def paused(self) -> list[Instance]:
        """Instances that are paused and have pages in the pool."""
        return [
            instance
            for instance, space in self._model.spaces.items()
            if space.pages.resident and self._is_paused(instance)
        ]

    def in_order(
        self, paused: list[Instance], room: int, wanted: int
    ) -> tuple[list[Instance], list[Instance]]:
        """Of the paused instances those that the policy would swap, into `room` pages, if so many
        are wanted beside those that instances wait for, and the others; those that waste most
        first. A user's instances change places by what the user has said that their pages are
        worth.
        """
        facts = [self._input.facts(i) for i in paused]
        choices = self._input.choose(facts, room, wanted)
        order = sorted(range(len(paused)), key=lambda n: -facts[n].remaining * facts[n].tokens)
        if self._model.pages.retention.rated:
            worth = [self._input.worth(paused[n]) for n in order]
            order = within_users(order, [paused[n].user for n in order], worth)
        willing = [paused[n] for n in order if choices[n] is Choice.SWAP]
        return willing, [paused[n] for n in order if choices[n] is not Choice.SWAP]

    def _stopped(self, instance: Instance, count: int) -> list[Instance]:
        """Of those that make way the ones that wait or are held, and have sent all commands."""
        return [
            other
            for other in self._that_make_way(instance, count)
            if self._records.state(other) in (EvictionState.WAITING, EvictionState.HELD)
            and self._model.scheduler.all_sent(other)
        ]

    def _that_make_way(self, instance: Instance, count: int) -> list[Instance]:
        """Those that make way and have pages: other users', then the user's own, youngest first."""
        allotments = self._model.reclaim.page_allotments()
        found = [
            other
            for other, space in self._model.spaces.items()
            if space.pages.resident and allotments.makes_way(other, instance, count)
        ]
        found.sort(key=lambda other: (other.user == instance.user, -other.number))
        return [other for other in found if not self._is_paused(other)]

    def _is_paused(self, instance: Instance) -> bool:
        return (
            bool(instance.turn.awaited)
            and not instance.turn.scheduled
            and instance is not self.stepping
            # What it has queued may name any of its pages, and runs in order: they must stay.
            and not instance.queued_commands
            and self._records.state(instance) in (EvictionState.RESIDENT, EvictionState.SWAPPED)
        )
