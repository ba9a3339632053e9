"""Command queues, and the account that joins the queues of one instance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pie_control.commands.command import Command, Mark
from pie_control.errors import ApiError

if TYPE_CHECKING:
    from pie_control.instances.futures import Future
    from pie_control.instances.timeline import Timeline
    from pie_control.prefix.provenance import Provenance
    from pie_py.config.limits import Limits


class QueueOwner(Protocol):
    """An instance, as the scheduler sees it."""

    id: str
    user: str
    limits: Limits
    queued_commands: int
    prompt_tokens: int
    generated_tokens: int
    timeline: Timeline | None


class SentBatch(Protocol):
    """A batch at the worker, as a queue sees it that has commands in it."""

    done: bool  # its results are there
    marks: list[Mark]


class Taker(Protocol):
    """Takes what a command gives: a future, or a run."""

    on_cancel: Callable[[], None] | None

    @property
    def ready(self) -> bool:
        """Whether it has an answer."""

    def resolve(self, value: Any) -> None:
        """What the command gives."""

    def fail(self, error: ApiError) -> None:
        """There is none."""


class Account:
    """The queues of one owner that hold commands, and what waits until those are sent."""

    __slots__ = ("active", "barrier", "owner", "parked", "provenance", "queues", "releases")

    def __init__(self, owner: QueueOwner) -> None:
        self.owner = owner
        self.active: dict[CommandQueue, None] = {}
        # Records every command, from the owner's first request for shared prefixes on.
        self.provenance: Provenance | None = None
        self.parked = False  # the server may move its pages: its runs have no steps
        self.releases: deque[tuple[int, Callable[[], None]]] = deque()
        self.queues = 0  # opened so far
        self.barrier = 0  # what commands up to this number touch was not recorded


class CommandQueue:
    """Commands of one instance for one model, which take effect in order. The scheduler moves them.

    A command that fails makes the later ones of its queue fail too, up to the next `synchronize`:
    that is the point at which the guest learns of it and starts again.
    """

    def __init__(self, account: Account, number: int) -> None:
        """Takes the account of its instance, and a number that grows with every queue."""
        self.account = account
        self.owner = account.owner
        # Its place in a batch: those of higher priority, then those of older queues, are before it.
        self.id = number  # of no other queue of the model
        self.rank = (0, number)
        self.pending: deque[Command] = deque()  # oldest first
        self.last: SentBatch | None = None  # the batch that holds its newest command sent
        self.ahead = False  # its newest input was embedded before its token was known
        self.failure: ApiError | None = None  # why commands fail until the next synchronize
        self.failure_reported = False
        self.failures = 0  # commands that have failed
        # Spans of the pages of its newest forward or run, for people who look at an instance.
        self.sees: tuple[list[int], ...] = ()

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return -self.rank[0]

    @priority.setter
    def priority(self, priority: int) -> None:
        self.rank = (-priority, self.rank[1])

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is at the worker."""
        return self.last is None or self.last.done

    @property
    def drops(self) -> bool:
        """Whether its commands are dropped, up to the next mark, because one before them has
        failed.

        What they were to write is cleared then, before all else that is sent. Another queue of the
        owner may be about to read just that; so with commands in others, these run in their places
        and fail there.
        """
        if self.failure is None or not self.is_idle:
            return False
        return all(other is self for other in self.account.active)

    def must_follow(self, command: Command) -> bool:
        """Whether another queue of the instance has yet to send what comes before a command of this
        one.
        """
        for other in self.account.active:
            if other is not self and other.pending[0].number <= command.after:
                return True
        command.after = 0
        return False

    def check_room(self, count: int = 1) -> None:
        """Refuses more commands than an instance may have queued.

        Raises:
            ApiError: `limit-exceeded`.
        """
        limit = self.owner.limits.queued_commands
        if self.owner.queued_commands + count > limit:
            raise ApiError(
                "limit-exceeded",
                f"{self.owner.queued_commands} commands are queued and {limit} may be;"
                " wait for some (synchronize) before queueing more",
            )

    def fail(self, error: ApiError) -> None:
        """Notes that a command failed, so that its dependants do."""
        self.failures += 1
        if self.failure is None:
            self.failure = error
            self.failure_reported = False

    def dependency_error(self) -> ApiError:
        """The error of a command that comes after one that failed."""
        return ApiError(
            "failed-dependency",
            f"an earlier command of this queue failed ({self.failure});"
            " the queue accepts commands again after a synchronize",
        )

    def fail_dependant(self, future: Taker) -> None:
        """Fails the future of a command that comes after one that failed, unless it has a value or
        was cancelled. If it is cancelled later, it has not reported the failure.
        """
        if not future.ready:
            self.failure_reported = True
            future.on_cancel = self._not_reported
            future.fail(self.dependency_error())

    def _not_reported(self) -> None:
        self.failure_reported = False


class Sync:
    """A mark that makes a future ready; after a failure the queue then accepts commands again."""

    __slots__ = ("_future", "_queue")

    def __init__(self, queue: CommandQueue, future: Future) -> None:
        self._queue = queue
        self._future = future

    def passed(self) -> None:
        """Resolves the future, or fails it with the queue's unreported error."""
        queue = self._queue
        self._future.on_cancel = None
        error, reported = queue.failure, queue.failure_reported
        queue.failure = None
        if error is None or reported:
            self._future.resolve()
        else:
            self._future.fail(error)

    def dropped(self) -> None:
        """The future ends with its instance."""
