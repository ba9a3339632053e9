"""What the executor knows of one guest: what it waits for, and what keeps it from running."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance


class Blocker(Protocol):
    """Who may keep an instance from its turn, such as an evictor that has its pages."""

    def wants_to_run(self, instance: Instance) -> None:
        """Called instead of the turn of an instance that is blocked; may unblock it."""

    def has_work(self, instance: Instance) -> None:
        """Called when commands of an instance that is blocked may go on without a turn of it."""


class Promise(Protocol):
    """Something that others wait for and that an instance is expected to do in its next slices."""

    def interrupt(self) -> None:
        """A slice of the instance has ended before it has kept the promise."""

    def drop(self) -> int:
        """Others need not wait any longer; returns the slices that have ended meanwhile."""


class TurnState:
    """One guest between two turns. The executor owns it; others use the methods.

    A guest is *scheduled* (in a line of the executor), or *waits*: for one of some futures
    (`awaited`), or, with `awaited` None, for the answer of the host function that suspended it.
    A blocked guest stays in its state; it gets no turn while a blocker holds it.
    """

    __slots__ = ("_among", "answers_with", "awaited", "blockers", "promise", "scheduled")

    def __init__(self) -> None:
        self.awaited: list[int] | None = None  # futures the guest waits for
        self._among: frozenset[int] | None = None  # the same, once one of them is looked for
        # Makes the answer of a wait for one future; None answers with the futures that are ready.
        self.answers_with: Callable[[Instance, int], Any] | None = None
        self.scheduled = False  # has a place in a line of the executor
        self.blockers: set[Blocker] = set()
        self.promise: Promise | None = None

    def wait_for(
        self, futures: list[int], answers_with: Callable[[Instance, int], Any] | None = None
    ) -> None:
        """The guest is suspended until one of the futures is ready.

        Args:
            futures: their handles.
            answers_with: makes the answer from the instance and the first handle; without it the
                answer is the list of handles that are ready.
        """
        self.awaited = futures
        self._among = None
        self.answers_with = answers_with

    def awaits(self, future: int) -> bool:
        """Whether the guest waits for a future, among others. Takes no longer for many."""
        if self.awaited is None:
            return False
        if self._among is None:
            self._among = frozenset(self.awaited)
        return future in self._among

    def drop_promise(self) -> int:
        """Others need not wait for the instance any longer; returns the slices it has used."""
        promise, self.promise = self.promise, None
        return 0 if promise is None else promise.drop()

    def clear(self) -> None:
        """The instance has ended."""
        self.awaited = self.answers_with = None
        self.drop_promise()
