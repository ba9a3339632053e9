"""A set from which a random member is drawn without looking at the others."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from random import Random
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)


class RandomSet(Generic[Member]):
    """Adds, removes and draws in constant time: a list, and each member's place in it."""

    __slots__ = ("_members", "_places")

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._places: dict[Member, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: Member) -> bool:
        return member in self._places

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def add(self, member: Member) -> None:
        """Adds a member; one that is there already stays."""
        if member not in self._places:
            self._places[member] = len(self._members)
            self._members.append(member)

    def discard(self, member: Member) -> None:
        """Removes a member, if it is there; the last one takes its place."""
        place = self._places.pop(member, None)
        if place is None:
            return
        last = self._members.pop()
        if last is not member:
            self._members[place] = last
            self._places[last] = place

    def draw(self, random: Random) -> Member | None:
        """A member, each as likely as any other; None of an empty set."""
        members = self._members
        return members[int(random.random() * len(members))] if members else None
