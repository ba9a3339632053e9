"""One running inferlet, as the rest of the control layer sees it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import trio

from pie_control.fairness import Owner
from pie_control.instances.futures import FutureTable
from pie_control.instances.handles import Handles
from pie_control.instances.log import Log
from pie_control.instances.mailbox import Mailbox
from pie_control.instances.message_bytes import MessageBytes
from pie_control.instances.timeline import Timeline
from pie_control.instances.turn_state import TurnState
from pie_control.wasm.engine import MEMORIES
from pie_py.config.limits import Limits, Quota

if TYPE_CHECKING:
    from pie_control.programs.store import Program
    from pie_control.wasm import Guest


PAGE_BYTES = resource.getpagesize()  # of the machine's memory
ARGUMENT_OVERHEAD = 64  # bytes that an argument takes in addition to its text


class State(Enum):
    """Where an instance is in its life."""

    RUNNING = "running"
    FINISHED = "finished"  # returned a result
    FAILED = "failed"  # returned an error, trapped, or broke a limit
    KILLED = "killed"  # by a client, its parent, the server, or for want of resources


_CLOSED: Mailbox[Any] = Mailbox(0, 0)


@dataclass(frozen=True, slots=True)
class Ended:
    """Last event of an instance: its result (`FINISHED`) or the reason it ended otherwise."""

    state: State
    text: str
    time_ns: int = 0  # Unix epoch
    cpu_ns: int = 0  # CPU time of its guest, in all


Event: TypeAlias = str | bytes | Ended


class Fence(NamedTuple):
    """One run of a launch that may be run again after it: what runs before may change no more."""

    launch: str  # its name, which the ids of all its runs begin with
    run: int  # from 1; only grows
    lease: int  # of the node that it runs on


@dataclass(slots=True)
class ClientPresence:
    """Whether a client reads what an instance sends. Kept by the RPC server."""

    attached: bool = False
    left_at: float | None = None  # trio time since when no client has waited for it


class Instance:
    """State of one running inferlet. The executor runs it, the registry ends it.

    What one layer alone keeps of an instance lives in that layer, in a table by instance.
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
        self.ended: Ended | None = None
        self.ended_event = trio.Event()
        self.fence: Fence | None = None  # of a launch that is recorded, and of its children
        self.generations = 0  # above it on other nodes of the cluster

        self.guest: Guest | None = None  # from its launch to its end
        self.turn = TurnState()
        self.futures = futures
        # What its queue handles stand for. Only the API looks inside (`api.queues.queue_of`).
        self.queues: Handles[Any] = Handles()
        self.queued_commands = 0  # of all its queues; the schedulers count
        self.pages_made = 0.0  # of the machine's memory, while its guest ran

        boxes = (limits.mailbox_messages, limits.mailbox_bytes)
        self.outbox: Mailbox[Event] = Mailbox(*boxes, messages)  # to the client, in order
        self.texts: Mailbox[str] = Mailbox(*boxes, messages)  # from the client
        self.blobs: Mailbox[bytes] = Mailbox(*boxes, messages)  # from the client
        spans = limits.trace_spans
        self.timeline = Timeline(spans) if spans else None
        self.log = Log(limits.log_lines, date_ns)
        self.client = ClientPresence()

    def close_inbox(self) -> None:
        """It has ended: what clients sent and it has not read goes, the mailboxes, too."""
        for box in (self.texts, self.blobs):
            box.drop_all()
            box.leave_user()
        self.texts = self.blobs = _CLOSED

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return State.RUNNING if self.ended is None else self.ended.state

    @property
    def depth(self) -> int:
        """Generations above it: 0 for an instance that a client launched."""
        return self.generations if self.parent is None else self.parent.depth + 1

    @property
    def cpu_ns(self) -> int:
        """CPU time that its guest has used so far."""
        if self.guest is not None:
            return self.guest.cpu_ns
        return 0 if self.ended is None else self.ended.cpu_ns

    @property
    def memory_bytes(self) -> int:
        """Memory that its guest has taken, about."""
        return min(self.limits.memory * MEMORIES, int(self.pages_made * PAGE_BYTES))


def argument_bytes(args: list[str]) -> int:
    """What arguments take in memory, in characters and bytes, about."""
    return sum(map(len, args)) + ARGUMENT_OVERHEAD * len(args)
