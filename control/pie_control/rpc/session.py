"""One client at the server: its presence, its requests, and streams of items to it. No I/O."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from pie_control.errors import ApiError
from pie_control.instances.instance import Instance, InstanceEnded
from pie_py.config.keys import LOCAL_USER
from pie_py.wire.rpc import Ended, Failure, Item, Items, Response, size_of

MAX_PENDING = 4096  # requests without an answer, or whose answer the client has not confirmed
MAX_ANSWER_BYTES = 64 << 20  # of answers that the client has not confirmed

MAX_WINDOW = 1024  # items sent and not acknowledged
WINDOW_BYTES = 1 << 20  # sent and not acknowledged; one item may go over it
FRAME_BYTES = 256 << 10  # of several items joined in one message


class Presence(Enum):
    """How far a session's client can be reached."""

    PRESENT = auto()  # it has a connection, and was heard lately
    SILENT = auto()  # it has a connection, and was not heard for `Timing.dead` seconds
    CUT = auto()  # it has no connection: it must say hello on a new one
    ENDED = auto()  # for good


@dataclass(slots=True)
class Pending:
    """A request that the client has not confirmed: under way while `answer` is None."""

    answer: bytes | None = None
    opened: str | None = None  # the instance whose stream the answer opens


@dataclass(slots=True, eq=False)
class Session:
    """State of one client at the server; it outlives the connections it is carried over."""

    id: bytes
    user: str
    heard: float  # when the last message came
    peer: bytes | None = None  # routing id of the connection; None while there is none
    presence: Presence = Presence.CUT
    away_since: float | None = None  # when it was last present; None while it is
    pending: dict[int, Pending] = field(default_factory=dict)  # by number, in order
    # Part of each welcome. A client whose session was forgotten may never read the welcome that
    # says so, if that connection breaks; by another mark it knows the next one's session for a new
    # one, too.
    mark: int = field(default_factory=lambda: secrets.randbits(63))
    highest: int = 0  # request number
    answer_bytes: int = 0
    streams: dict[str, ItemStream] = field(default_factory=dict)  # by instance
    outgoing: list[bytes] = field(default_factory=list)  # frames that wait to be sent together

    @property
    def scope(self) -> str | None:
        """The user whose programs and instances the session sees; None for those of all users."""
        return None if self.user == LOCAL_USER else self.user

    @property
    def is_present(self) -> bool:
        """True if items may be sent to it."""
        return self.presence is Presence.PRESENT

    def check_admin(self, admins: Collection[str]) -> None:
        """Refuses what only the operator may do: a user without a key, or one of the admins.

        Raises:
            ApiError: `permission-denied`.
        """
        if self.user != LOCAL_USER and self.user not in admins:
            raise ApiError(
                "permission-denied",
                f"user {self.user!r} may not do this; the server's `admins` may, and every client"
                " that connects from its own machine without a key",
            )

    def acts_for(self, user: str, admins: Collection[str]) -> str:
        """The user that a request is about: the session's, or another one that the operator names.

        Raises:
            ApiError: `permission-denied`.
        """
        if user and user != self.user:
            self.check_admin(admins)
        return user or self.user

    def become(self, presence: Presence, now: float) -> None:
        """Its presence is another one; its streams learn whether they have a reader."""
        before, self.presence = self.presence, presence
        if presence is before:
            return
        if self.presence is Presence.PRESENT:
            self.away_since = None
            for stream in self.streams.values():
                stream.present()
        elif before is Presence.PRESENT:
            self.away_since = now
            for stream in self.streams.values():
                stream.absent(now)

    # Requests

    def confirm(self, answered_below: int) -> list[int]:
        """Forgets requests whose answers the client has; returns those that it gave up."""
        given_up = []
        while self.pending:
            number = next(iter(self.pending))
            if number >= answered_below:
                break
            request = self.pending.pop(number)
            if request.answer is None:
                given_up.append(number)
            else:
                self.answer_bytes -= len(request.answer)
        return given_up

    @property
    def takes_no_answers(self) -> bool:
        """True if it has opened more requests, or left more answers unconfirmed, than it may."""
        return len(self.pending) > MAX_PENDING or self.answer_bytes > MAX_ANSWER_BYTES

    def answered(self, answer: Response | Failure, frame: bytes) -> bool:
        """Has an answer until it is confirmed. False if the client has given the request up."""
        request = self.pending.get(answer.number)
        if request is None:
            return False
        request.answer = frame
        if isinstance(answer, Response) and isinstance(answer.value, dict):
            request.opened = answer.value.get("instance")
        self.answer_bytes += len(frame)
        return True


class ItemStream:
    """The stream of one instance, read by one session at a time.

    Back-pressure: items leave the instance's mailbox only while the window has room, so a reader
    that does not read fills the mailbox, and the mailbox answers the instance `would-block`.
    """

    def __init__(self, instance: Instance, wake: Callable[[ItemStream], None]) -> None:
        """Takes what to call when there may be something to send."""
        self.instance = instance
        self.reader: Session | None = None
        self.lives_alone = False  # launched to live on without a client
        self._wake = wake
        self._watching = False
        self._paused = False
        self._window = 0
        self._unacked: deque[tuple[Item, int]] = deque()
        self._unacked_bytes = 0
        self._acked = instance.first_item  # number of the first item in `_unacked`
        self._next = self._acked  # number of the next item to send

    @property
    def next_number(self) -> int:
        """Number of the item that is sent next."""
        return self._next

    @property
    def finished(self) -> bool:
        """True if the last item is acknowledged; an end being written down is none yet."""
        settled = self.instance.ended_event.is_set()
        return settled and not self._unacked and not len(self.instance.outbox)

    def attach(self, session: Session, window: int, received: int | None = None) -> None:
        """Makes a session the reader, from the item `received` on or all not acknowledged."""
        self.reader = session
        self._window = max(1, min(window, MAX_WINDOW))
        if received is not None:
            self.acknowledge(received)
            while (
                not self._unacked and self._acked < received
            ):  # from an earlier life of the server
                if self.instance.outbox.pop() is None:
                    break
                self._acked += 1
        self._next = self._acked
        self._paused = False
        self.present()
        self._wake(self)

    def pause(self) -> None:
        """The reader has a new connection: sends nothing until it says what it has received."""
        self._paused = True

    def resume(self, received: int, consumed: int) -> None:
        """The reader is back: goes on from what it has not received."""
        self.acknowledge(consumed)
        self._paused = False
        self._next = min(max(received, self._acked), self._acked + len(self._unacked))
        self.present()
        self._wake(self)

    def present(self) -> None:
        """The reader is there."""
        self.instance.client.attached = True
        self.instance.client.left_at = None

    def absent(self, now: float) -> None:
        """The reader has vanished, for now or for good."""
        self.instance.client.attached = False
        self.instance.make_room()
        if not self.lives_alone and self.instance.parent is None:  # a child ends with its parent
            self.instance.client.left_at = now

    def detach(self, now: float) -> None:
        """The reader leaves for good."""
        self.reader = None
        self.absent(now)

    def acknowledge(self, consumed: int) -> None:
        """Forgets the items below a number, but none that was never sent."""
        gone = False
        while self._unacked and self._acked < consumed and self._acked < self._next:
            _, size = self._unacked.popleft()
            self._unacked_bytes -= size
            self._acked += 1
            gone = True
        if gone and self.instance.durable is not None:
            self.instance.durable.acked(self._acked)
        self._wake(self)

    def take(self) -> Items | None:
        """The next message to send, or None if there is nothing to send or the window is full."""
        if self._paused:
            return None
        first = self._next
        items: list[Item] = []
        size = 0
        offset = first - self._acked
        while size < FRAME_BYTES:
            if offset < len(self._unacked):  # sent before, to a connection that is gone
                item, item_size = self._unacked[offset]
            else:
                if len(self._unacked) >= self._window or self._unacked_bytes >= WINDOW_BYTES:
                    break
                if self.instance.durable is not None and not self._may_leave():
                    break
                event = self.instance.outbox.pop()
                if event is None:
                    last = self._unacked[-1][0] if self._unacked else None
                    if not self._watching and not isinstance(last, Ended):  # nothing comes then
                        self._watching = True
                        self.instance.outbox.when_item(self._on_item)
                    break
                if isinstance(event, InstanceEnded):
                    item = Ended(event.state.value, event.text)
                    item_size = size_of(event.text)
                else:
                    item, item_size = event, size_of(event)
                self._unacked.append((item, item_size))
                self._unacked_bytes += item_size
            items.append(item)
            size += item_size
            offset += 1
        self._next = first + len(items)
        return Items(self.instance.id, first, items) if items else None

    def _may_leave(self) -> bool:
        """True if a durable instance's next item may be sent; else there is a wake once it may."""
        durable = self.instance.durable
        if durable is None or durable.may_leave(self._acked + len(self._unacked)):
            return True
        if not self._watching:
            self._watching = True
            durable.journal.when_safe(self._on_item)
        return False

    def _on_item(self) -> None:
        self._watching = False
        self._wake(self)
