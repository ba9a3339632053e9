"""One running inferlet, and what other layers may ask of those that run and end it.

The evictor, the models and the API are built with `Turns` and `Ends`. They know neither the
executor nor the registry, and a test can hand in a few lines of its own.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from pie_control.fairness import Owner
from pie_control.instances.aim import Aim, Precedence
from pie_control.instances.durable import Durable
from pie_control.instances.futures import FutureTable
from pie_control.instances.log import Log, ReleasedContexts
from pie_control.instances.mailbox import Mailbox, MessageBytes, Outbox
from pie_control.instances.timeline import Timeline
from pie_control.wasm.engine import MEMORIES
from pie_py.config.limits import Limits, Quota

if TYPE_CHECKING:
    from pie_control.programs.store import Program
    from pie_control.wasm.guest import Guest


PAGE_BYTES = resource.getpagesize()  # of the machine's memory
MAILBOX_MESSAGES = 4096  # kept for a reader that does not read
LOG_LINES = 1000  # newest ones kept
SPANS = 512  # newest waits and batches kept
ARGUMENT_OVERHEAD = 64  # bytes that an argument takes in addition to its text

Item = TypeVar("Item")


class Account(NamedTuple):
    """Whose account is charged with what an instance uses."""

    user: str
    program: str
    tag: str


class Handles(dict[int, Item]):
    """Objects of one instance by handle. Handles count from 1 and are never used twice."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last = 0

    def add(self, item: Item) -> int:
        """Gives an object the next handle and returns the handle."""
        self._last += 1
        self[self._last] = item
        return self._last


class Blocker(Protocol):
    """A part that may keep an instance from its turn, such as an evictor that has its pages."""

    def wants_to_run(self, instance: Instance) -> None:
        """Called instead of the turn of an instance that is blocked; may unblock it."""

    def has_work(self, instance: Instance) -> None:
        """Called when commands of an instance that is blocked may go on without a turn of it."""


class TurnState:
    """One guest between two turns. The executor owns it; others use the methods.

    A guest is *scheduled* (in a line of the executor), or *waits*: for one of some futures
    (`awaited`), or, with `awaited` None, for the answer of the host function that suspended it.
    A blocked guest stays in its state; it gets no turn while a blocker holds it.
    """

    __slots__ = ("_among", "answers_with", "awaited", "blockers", "gives_way", "scheduled")

    def __init__(self) -> None:
        self.awaited: list[int] | None = None  # futures the guest waits for
        self._among: frozenset[int] | None = None  # the same, once one of them is looked for
        # Makes the answer of a wait for one future; None answers with the futures that are ready.
        self.answers_with: Callable[[Instance, int], Any] | None = None
        self.scheduled = False  # has a place in a line of the executor
        self.gives_way = False  # ends this turn early, and has another one behind the others
        self.blockers: set[Blocker] = set()

    def wait_for(
        self, futures: list[int], answers_with: Callable[[Instance, int], Any] | None = None
    ) -> None:
        """The guest is suspended until one of the futures is ready.

        `answers_with` makes the answer from the instance and the first handle; without it the
        answer is the list of handles that are ready.
        """
        self.awaited = futures
        self._among = None
        self.answers_with = answers_with

    def awaits(self, future: int) -> bool:
        """True if the guest waits for a future, among others. Takes no longer for many."""
        if self.awaited is None:
            return False
        if self._among is None:
            self._among = frozenset(self.awaited)
        return future in self._among

    def clear(self) -> None:
        """The instance has ended."""
        self.awaited = self.answers_with = None


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


class InstanceState(Enum):
    """States of an instance: it runs, or how it has ended."""

    RUNNING = "running"
    FINISHED = "finished"  # returned a result
    FAILED = "failed"  # returned an error, trapped, or broke a limit
    KILLED = "killed"  # by a client, its parent, the server, or for want of resources


_CLOSED: Mailbox[Any] = Mailbox(0, 0)


@dataclass(frozen=True, slots=True)
class InstanceEnded:
    """Last event of an instance: its result (`FINISHED`) or the reason it ended otherwise."""

    state: InstanceState
    text: str
    time_ns: int = 0  # Unix epoch
    cpu_ns: int = 0  # CPU time of its guest, in all


Event: TypeAlias = str | bytes | InstanceEnded


@dataclass(slots=True)
class ClientPresence:
    """The client that reads what an instance sends, if it is there. The RPC server writes it."""

    attached: bool = False
    left_at: float | None = None  # trio time since when no client has waited for it


class Instance:
    """State of one running inferlet. The executor runs it, the registry ends it.

    What one layer alone knows of an instance is in that layer, in a table by instance.
    """

    def __init__(
        self,
        number: int,
        instance_id: str,
        program: Program,
        args: list[str],
        user: str,
        limits: Limits,
        futures: FutureTable,
        date_ns: Callable[[], int],
        parent: Instance | None = None,
        quota: Quota = Quota(),  # noqa: B008 - frozen
        messages: MessageBytes | None = None,  # of its user
    ) -> None:
        self.number = number  # grows with every launch: first come, first served
        self.id = instance_id
        self.program = program
        self.args = args
        self.user = user
        self.owner = Owner(user, instance_id)
        self.limits = limits
        self.quota = quota  # of its user
        self.parent = parent
        self.created_ns = date_ns()
        self.ended: InstanceEnded | None = None
        self.ended_event = trio.Event()
        self.durable: Durable | None = None
        self.first_item = 0  # number of the first item of its outbox
        self.keeps_newest = parent is not None  # of its messages; a child has no client

        self.guest: Guest | None = None  # from its launch to its end
        self.turn = TurnState()
        self.futures = futures
        # What its queue handles stand for. Only the API looks inside (`api.binder.queue_of`).
        self.queues: Handles[Any] = Handles()
        self.queued_commands = 0  # of all its queues; the schedulers count
        self.prompt_tokens = 0  # that forwards of several tokens have read; they count these, too
        self.generated_tokens = 0  # by samplers
        self.cached_tokens = 0  # of its prompts, which the prefix cache had
        self.page_seconds = 0.0  # that its contexts have held on devices; those it holds come after
        self.tool_seconds = 0.0  # of calls outside in earlier lives
        self.aim = Aim(user, program.name)  # the registry's, as it is launched
        self.tag: str = "" if parent is None else parent.tag  # its client's, for the ledger
        self.most_pages: dict[str, int] = {}  # that it had at once, by model; once it has ended
        self.pages_made = 0.0  # of the machine's memory, while its guest ran

        self.messages = messages
        boxes = (MAILBOX_MESSAGES, limits.mailbox_bytes)
        self.outbox = Outbox(*boxes, messages)  # to the client, in order
        self.texts: Mailbox[str] = Mailbox(*boxes, messages)  # from the client
        self.blobs: Mailbox[bytes] = Mailbox(*boxes, messages)  # from the client
        self.timeline = Timeline(SPANS)
        self.log = Log(LOG_LINES, date_ns)
        self.released = ReleasedContexts()
        self.client = ClientPresence()

    def begin_again(self, futures: FutureTable) -> None:
        """It has lost what it held, and begins another life, with what its clients sent."""
        self.turn = TurnState()
        self.tool_seconds += self.futures.outside_seconds
        self.futures = futures
        self.queues = Handles()
        self.queued_commands = 0
        self.pages_made = 0.0

    def make_room(self) -> None:
        """Messages that no client reads give way to newer ones, if that was asked for."""
        if self.keeps_newest and not self.client.attached:
            while len(self.outbox) and not self.outbox.has_room:
                self.outbox.pop()

    def close_inbox(self) -> None:
        """It has ended: what clients sent and it has not read goes, the mailboxes, too."""
        for box in (self.texts, self.blobs):
            box.drop()
            box.leave_user()
        self.texts = self.blobs = _CLOSED

    @property
    def state(self) -> InstanceState:
        """Its state: it runs, or how it has ended."""
        return InstanceState.RUNNING if self.ended is None else self.ended.state

    @property
    def account(self) -> Account:
        """Whose account is charged with what it uses."""
        return Account(self.user, self.program.name, self.tag)

    @property
    def depth(self) -> int:
        """Generations above it: 0 for an instance that a client launched."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def precedence(self) -> Precedence:
        """Where it stands among its user's instances; less goes first."""
        return self.aim.precedence(self.generated_tokens)

    @property
    def cpu_ns(self) -> int:
        """CPU time that its guest has used so far."""
        if self.guest is not None:
            return self.guest.cpu_ns
        return 0 if self.ended is None else self.ended.cpu_ns

    @property
    def guest_bytes(self) -> int:
        """Memory that its guest has taken, about."""
        return min(self.limits.memory * MEMORIES, int(self.pages_made * PAGE_BYTES))

    @property
    def memory_bytes(self) -> int:
        """That, and results that it has not taken."""
        return self.guest_bytes + self.futures.held


def argument_bytes(args: list[str]) -> int:
    """Memory that arguments take, in characters and bytes, about."""
    return sum(map(len, args)) + ARGUMENT_OVERHEAD * len(args)
