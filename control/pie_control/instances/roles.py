"""What other layers may ask of those that run and end instances, as narrow protocols.

The evictor, the models and the API are built with these. They know neither the executor nor the
registry, and a test can hand in a few lines of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance


class Turns(Protocol):
    """Gives guests their turns: the executor."""

    def answer(self, instance: Instance, value: Any) -> None:
        """Resumes a guest that a host function other than `wait` has suspended.

        `value` is what the function returns; an ApiError is its error.
        """

    def give_turn(self, instance: Instance) -> None:
        """Resumes a guest that waits, whether or not a future of it is ready."""

    def give_another(self) -> None:
        """Sees to it that another turn comes soon, with or without guests that are ready."""


class Ends(Protocol):
    """Ends instances: the registry."""

    def fail(self, instance: Instance, reason: str) -> None:
        """Ends an instance for a fault that is not its own."""

    def kill(self, instance: Instance, reason: str) -> None:
        """Ends an instance from outside."""

    def reclaim(self, victims: Iterable[Instance], enough: Callable[[], bool]) -> bool:
        """Ends victims one after the other until `enough()`, and returns what that says then."""
