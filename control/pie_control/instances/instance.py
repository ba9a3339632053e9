"""One running inferlet, as the rest of the control layer sees it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from pie_control.grammar.table import GrammarTable
from pie_control.instances.futures import Future, FutureKind, FutureTable, Outside
from pie_control.instances.mailbox import Mailbox
from pie_py.config.limits import Limits

if TYPE_CHECKING:
    from pie_control.host import Host
    from pie_control.instances.timers import Timer
    from pie_control.interception.evictor import Evictor
    from pie_control.prefix.intents import Intent
    from pie_control.programs.store import Program
    from pie_control.resources.space import Space
    from pie_control.rpc.outlet import Outlet
    from pie_control.scheduler.queue import CommandQueue
    from pie_control.wasm import Guest


LOG_OVERHEAD = 200  # bytes that a line takes besides its text
ARGUMENT_OVERHEAD = 64  # bytes that an argument takes besides its text


class State(Enum):
    """Where an instance is in its life."""

    RUNNING = "running"
    FINISHED = "finished"  # returned a result
    FAILED = "failed"  # returned an error, trapped, or broke a limit
    KILLED = "killed"  # by a client, its parent, the server, or for want of resources


@dataclass(frozen=True, slots=True)
class Ended:
    """Last event of an instance: its result (`FINISHED`) or the reason it ended otherwise."""

    state: State
    text: str


Event: TypeAlias = str | bytes | Ended


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that an inferlet logged."""

    time_ns: int  # Unix epoch
    level: str  # debug, info, warning, error
    text: str


class Instance:
    """State of one running inferlet. Behaviour lives in the executor, the lifecycle and the API."""

    def __init__(
        self,
        number: int,
        instance_id: str,
        program: Program,
        args: list[str],
        user: str,
        limits: Limits,
        host: Host,
        parent: Instance | None = None,
    ) -> None:
        self.number = number  # grows with every launch: first come, first served
        self.id = instance_id
        self.program = program
        self.args = args
        self.user = user
        self.limits = limits
        self.host = host
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: set[Instance] = set()
        self.starting = 0  # children launched that are not among them yet
        self.created_ns = time.time_ns()
        self.ended_ns: int | None = None
        self.cpu_ns = 0  # final once it has ended
        self.wall_timer: Timer | None = None
        self.state = State.RUNNING
        self.ended: Ended | None = None
        self.ended_event = trio.Event()

        self.guest: Guest | None = None
        self.awaited: list[int] | None = None  # futures the guest waits for
        # What answers a wait for one future, if it isn't that the future is ready.
        self.answers_with: Callable[[Instance, int], Any] | None = None
        self.scheduled = False  # has a place among the guests that run next
        self.blockers: set[Evictor] = set()  # who must let it go before its next turn
        self.intent: Intent | None = None  # a text that it is about to compute, until it waits
        self.futures = FutureTable(limits.futures)
        self.queues: dict[int, CommandQueue] = {}
        self.next_queue = 1
        self.spaces: dict[str, Space] = {}  # by model
        self.queued_commands = 0
        self.grammars = GrammarTable(limits.grammars, limits.matchers)

        boxes = (limits.mailbox_messages, limits.mailbox_bytes)
        self.outbox: Mailbox[Event] = Mailbox(*boxes)  # to the client, in order
        self.texts: Mailbox[str] = Mailbox(*boxes)  # from the client
        self.blobs: Mailbox[bytes] = Mailbox(*boxes)  # from the client
        self.log: deque[LogLine] = deque(maxlen=limits.log_lines)
        self._record_bytes: int | None = None  # of what stays as it is after the end
        self.logged = 0  # lines ever, dropped ones too
        self.outlet: Outlet | None = None  # set by the RPC server once somebody reads
        self.attached = 0  # clients that read the outbox
        self.detached_at: float | None = None  # trio time since when no client has waited for it

    def open_outside(self, kind: FutureKind, what: str, seconds: float | None = None) -> Future:
        """Opens a future of something outside, so that its duration is learned.

        Args:
            kind: what it will carry.
            what: names the kind of wait, such as a tool: those of one name last alike.
            seconds: how long it will last, if that is known.

        Raises:
            ApiError: `limit-exceeded`.
        """
        due = None if seconds is None else time.monotonic() + seconds
        return self.futures.create(kind, Outside(what, self._note_wait, due))

    def _note_wait(self, what: str, seconds: float) -> None:
        self.host.durations.add(self.user, what, seconds)

    @property
    def kept_bytes(self) -> int:
        """What its record holds once it has ended, in characters and bytes, about."""
        if self._record_bytes is None:
            result = 0 if self.ended is None else len(self.ended.text)
            log = sum(len(line.text) + LOG_OVERHEAD for line in self.log)
            self._record_bytes = result + argument_bytes(self.args) + log
        return self._record_bytes + self.outbox.size_bytes

    def add_log(self, level: str, text: str) -> None:
        """Appends a line to the log, dropping the oldest one if it is full."""
        self.logged += 1
        self.log.append(LogLine(time.time_ns(), level, text[:4096]))


def argument_bytes(args: list[str]) -> int:
    """What arguments take in memory, in characters and bytes, about."""
    return sum(map(len, args)) + ARGUMENT_OVERHEAD * len(args)
